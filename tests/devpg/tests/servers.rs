//! Private servers with other than the default settings, and in odd environments.

mod common;

use common::{Scratch, assert_gone, child, eventually, processes_in, run, segment_exists, segment_of};
use devpg::Server;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

async fn ask(options: &PgConnectOptions, sql: &str) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let answer = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await;
    connection.close().await?;
    answer
}

async fn show(server: &Server, name: &str) -> String {
    ask(&server.options("postgres"), &format!("SHOW {name}")).await.expect("show")
}

const DURABILITY: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

#[tokio::test]
async fn a_throw_away_server() {
    let server = Server::start().expect("start");
    for name in DURABILITY {
        assert_eq!(show(&server, name).await, "off", "{name}");
    }
    assert_eq!(show(&server, "listen_addresses").await, "");
    assert_eq!(show(&server, "data_directory").await, server.data_dir().to_str().expect("UTF-8"));
    assert!(server.programs().join("initdb").exists());
    let mode = fs::metadata(server.dir()).expect("dir").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "closed to others: who reaches the socket is a superuser");
}

#[tokio::test]
async fn a_durable_server_keeps_what_it_committed() {
    let server = Server::builder().durable().start().expect("start");
    for name in DURABILITY {
        assert_eq!(show(&server, name).await, "on", "{name}");
    }
    if cfg!(target_os = "linux") {
        let stat =
            Command::new("stat").args(["-f", "-c", "%T"]).arg(server.data_dir()).output().expect("stat");
        assert_ne!(String::from_utf8_lossy(&stat.stdout).trim(), "tmpfs");
    }
    let mut connection = PgConnection::connect_with(&server.options("postgres")).await.expect("connect");
    connection.execute("CREATE TABLE t AS SELECT 1 AS n").await.expect("create");
    connection.execute("BEGIN; INSERT INTO t VALUES (2)").await.expect("insert");
    let before = server.pid().expect("it runs");

    let segment = segment_of(server.dir());
    assert!(segment_exists(&segment), "{segment}");
    server.kill().expect("kill");
    assert_eq!(server.pid(), None);
    assert_eq!(processes_in(server.dir()).len(), 0);
    assert!(!segment_exists(&segment), "{segment}");
    assert!(connection.execute("COMMIT").await.is_err());
    assert!(ask(&server.options("postgres"), "SELECT 'x'").await.is_err());

    server.restart().expect("restart");
    assert_ne!(server.pid(), Some(before));
    let count = "SELECT count(*)::text FROM t";
    assert_eq!(ask(&server.options("postgres"), count).await.expect("count"), "1");
    assert!(server.log().contains("automatic recovery in progress"), "{}", server.log());
}

#[tokio::test]
async fn stop_and_restart() {
    let server = Server::start().expect("start");
    ask(&server.options("postgres"), "CREATE TABLE t AS SELECT 1 AS n").await.expect_err("no row");
    let mut open = PgConnection::connect_with(&server.options("postgres")).await.expect("connect");
    server.stop().expect("stop");
    server.stop().expect("stop again");
    assert_eq!(server.pid(), None);
    assert!(open.ping().await.is_err());
    server.restart().expect("start");
    server.restart().expect("restart");
    let count = "SELECT count(*)::text FROM t";
    assert_eq!(ask(&server.options("postgres"), count).await.expect("count"), "1");
    assert!(!server.log().contains("automatic recovery"), "{}", server.log());
}

/// While a backend that does not notice it goes on: then PostgreSQL refuses to start.
#[tokio::test]
async fn restart_after_the_postmaster_was_killed() {
    let server = Server::start().expect("start");
    let options = server.options("postgres");
    let endless = tokio::spawn(async move { ask(&options, "DO $$ BEGIN LOOP END LOOP; END $$").await });
    let options = server.options("postgres");
    let busy = "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'DO%' AND state = 'active'";
    while ask(&options, busy).await.expect("count") != "1" {
        tokio::task::yield_now().await;
    }
    common::kill("KILL", &server.pid().expect("it runs").to_string());
    server.restart().expect("restart");
    assert_eq!(ask(&options, "SELECT 'back'").await.expect("select"), "back");
    assert!(endless.await.expect("join").is_err());
}

#[tokio::test]
async fn settings() {
    let server = Server::builder()
        .setting("wal_level", "logical")
        .setting("max_prepared_transactions", 7)
        .setting("fsync", true)
        .setting("application_name", "with blanks and 'quotes'")
        .start()
        .expect("start");
    assert_eq!(show(&server, "wal_level").await, "logical");
    assert_eq!(show(&server, "max_prepared_transactions").await, "7");
    assert_eq!(show(&server, "fsync").await, "on", "it wins over the default");
    assert_eq!(show(&server, "application_name").await, "with blanks and 'quotes'");
}

#[tokio::test]
async fn tcp() {
    let server = Server::builder().tcp().start().expect("start");
    let tcp = server.tcp_options("postgres");
    let port = "SELECT inet_server_port()::text";
    assert_eq!(ask(&tcp, port).await.expect("select"), server.port().to_string());
    let error = ask(&tcp.clone().password("wrong"), port).await.expect_err("a wrong password");
    assert!(error.to_string().contains("password"), "{error}");
    server.kill().expect("kill");
    server.restart().expect("restart");
    assert_eq!(ask(&tcp, port).await.expect("select"), server.port().to_string(), "the same port");
    assert_eq!(ask(&server.options("postgres"), "SELECT 'socket'").await.expect("select"), "socket");
}

#[tokio::test]
async fn many_at_once() {
    let servers: Vec<_> =
        (0..6).map(|_| std::thread::spawn(|| Server::builder().tcp().start().expect("start"))).collect();
    for server in servers {
        let server = server.join().expect("join");
        assert_eq!(ask(&server.tcp_options("postgres"), "SELECT 'up'").await.expect("select"), "up");
    }
}

#[test]
#[should_panic(expected = "a server made with Builder::tcp")]
fn no_port_without_tcp() {
    Server::start().expect("start").port();
}

#[test]
fn a_directory_with_blanks_and_quotes() {
    let scratch = Scratch::new();
    let odd = scratch.path().join(r#"with blank, 'single', "double" & $dollar `tick` \ ü *"#);
    fs::create_dir(&odd).expect("create");
    let mut running = run(child(&scratch, &["server", "answer"]).env("TMPDIR", &odd));
    assert_eq!(running.ask("SELECT 'odd'"), "odd");
    assert!(running.dir().starts_with(&odd));
    let (dir, segment) = (running.dir(), segment_of(&running.dir()));
    running.signal("KILL");
    eventually("it is empty", || fs::read_dir(&odd).expect("read").count() == 0);
    fs::remove_dir(&odd).expect("remove");
    assert_gone(&scratch, &dir, &segment);
}

#[test]
fn a_plain_directory_with_blanks() {
    let scratch = Scratch::new();
    let blank = scratch.path().join("a b");
    fs::create_dir(&blank).expect("create");
    let mut running = run(child(&scratch, &["server", "answer"]).env("TMPDIR", &blank));
    assert_eq!(running.said("sockets"), running.said("dir"), "it is short enough");
    assert_eq!(running.ask("SELECT 'blank'"), "blank");
}

/// The path of a socket has a limit of some hundred bytes.
#[test]
fn a_long_directory() {
    let scratch = Scratch::new();
    let long = scratch.path().join("x".repeat(200));
    fs::create_dir(&long).expect("create");
    let mut running = run(child(&scratch, &["server", "answer"]).env("TMPDIR", &long));
    assert_eq!(running.ask("SELECT 'long'"), "long");
    let (dir, sockets) = (running.dir(), running.said("sockets").to_owned());
    assert!(dir.starts_with(&long) && sockets.len() < 100 && fs::metadata(&sockets).is_ok());
    running.signal("KILL");
    eventually("the directories are gone", || !dir.exists() && fs::metadata(&sockets).is_err());
    assert!(processes_in(&dir).is_empty());
}

#[test]
fn an_environment_of_nonsense() {
    let scratch = Scratch::new();
    let mut command = child(&scratch, &["durable", "answer"]);
    for name in
        ["HOST", "HOSTADDR", "PORT", "USER", "DATABASE", "PASSWORD", "SERVICE", "SERVICEFILE", "APPNAME"]
    {
        command.env(format!("PG{name}"), "nonsense");
    }
    for name in ["DATA", "PASSFILE", "SSLROOTCERT", "SSLCERT", "SSLKEY", "LOCALEDIR", "SYSCONFDIR"] {
        command.env(format!("PG{name}"), "/nonexistent");
    }
    command.env("PGSSLMODE", "verify-full").env("PGTZ", "nonsense").env("PGCLIENTENCODING", "nonsense");
    command.env("LANG", "xx_YY.nonsense").env("LC_ALL", "xx_YY.nonsense").env("TZ", "nonsense");
    command.env("DATABASE_URL", "").env("PG_BIN_DIR", "").env("ENV", "/nonexistent");
    command.env_remove("HOME").env_remove("USER").env_remove("LOGNAME");
    let mut running = run(&mut command);
    assert_eq!(running.ask("SELECT current_user || ' of ' || current_database()"), "postgres of postgres");
    let (dir, segment) = (running.dir(), segment_of(&running.dir()));
    running.signal("KILL");
    assert_gone(&scratch, &dir, &segment);
}

#[test]
fn a_directory_that_does_not_exist() {
    let error = Server::builder().base_dir("/nonexistent/place").start().expect_err("an error");
    assert!(error.to_string().contains("/nonexistent/place"), "{error}");
}
