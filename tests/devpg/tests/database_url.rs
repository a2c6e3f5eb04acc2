//! A server that others use too.

mod common;

use common::{Running, Scratch, child, run};
use devpg::Server;
use sqlx::{Connection, Executor, PgConnection};
use std::process::{Command, Stdio};

fn on(server: &Server, scratch: &Scratch, how: &str) -> Command {
    let mut command = child(scratch, &["database", how]);
    command.env("DATABASE_URL", server.url("postgres"));
    command
}

async fn databases(server: &Server) -> Vec<String> {
    let mut admin = PgConnection::connect_with(&server.options("postgres")).await.expect("connect");
    let names = "SELECT datname FROM pg_database WHERE datname LIKE 'devpg%' ORDER BY 1";
    sqlx::query_scalar(names).fetch_all(&mut admin).await.expect("select")
}

/// The template of a database.
fn template(running: &Running) -> String {
    running.said("database").rsplit_once('_').expect("a number at its end").0.to_owned()
}

#[tokio::test]
async fn a_passed_test_leaves_no_database() {
    let (server, scratch) = (Server::start().expect("start"), Scratch::new());
    let mut passed = run(&mut on(&server, &scratch, "return"));
    assert!(passed.process.wait().expect("wait").success());
    assert_eq!(databases(&server).await, [template(&passed)]);
    assert!(passed.said("database").contains(&format!("_{}_", passed.process.id())), "it names its process");
    assert!(scratch.entries().is_empty(), "no server of its own");
}

#[tokio::test]
async fn a_failed_test_leaves_its_database_for_a_while() {
    let (server, scratch) = (Server::start().expect("start"), Scratch::new());
    let mut failed = run(on(&server, &scratch, "panic").stderr(Stdio::null()));
    assert!(!failed.process.wait().expect("wait").success());
    assert_eq!(databases(&server).await, [template(&failed), failed.said("database").to_owned()]);
    let mut next = run(&mut on(&server, &scratch, "return"));
    next.process.wait().expect("wait");
    // it drops them while it works, at the latest when there is one more
    let mut last = run(&mut on(&server, &scratch, "answer"));
    while databases(&server).await.len() > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(databases(&server).await, [template(&last), last.said("database").to_owned()]);
    drop(last.process.stdin.take());
}

#[tokio::test]
async fn databases_of_the_living_stay() {
    let (server, scratch) = (Server::start().expect("start"), Scratch::new());
    let mut living = run(&mut on(&server, &scratch, "answer"));
    let mut killed = run(&mut on(&server, &scratch, "answer"));
    killed.signal("KILL");
    let admin = PgConnection::connect_with(&server.options("postgres")).await;
    admin.expect("connect").execute("CREATE DATABASE devpg_mine").await.expect("create");
    let mut third = run(&mut on(&server, &scratch, "answer"));
    let mut expected = vec!["devpg_mine".to_owned()];
    for running in [&living, &third] {
        expected.extend([template(running), running.said("database").to_owned()]);
    }
    expected.sort();
    while databases(&server).await.len() > expected.len() {
        tokio::task::yield_now().await;
    }
    let mut left = databases(&server).await;
    left.sort();
    assert_eq!(left, expected);
    assert_eq!(living.ask("SELECT current_database()::text"), living.said("database").to_owned());
    assert_eq!(third.ask("SELECT current_database()::text"), third.said("database").to_owned());
}

#[test]
fn many_processes_at_once() {
    let (server, scratch) = (Server::start().expect("start"), Scratch::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut running = run(&mut on(&server, &scratch, "answer"));
                assert_eq!(running.ask("SELECT count(*)::text FROM t"), "0");
            });
        }
    });
}

#[test]
fn a_bad_url() {
    let scratch = Scratch::new();
    for (url, why) in [
        ("nonsense", "it does not start with postgres://"),
        ("mysql://root@localhost/x", "it does not start with postgres://"),
        ("postgres://[::bad/x", "IPv6"),
        ("postgres://postgres@127.0.0.1:1/x", "cannot connect to the server that DATABASE_URL names"),
    ] {
        let mut command = child(&scratch, &["database", "return"]);
        let output = command.env("DATABASE_URL", url).output().expect("run");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(error.contains("DATABASE_URL") && error.contains(why), "{url}: {error}");
    }
}
