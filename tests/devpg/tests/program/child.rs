//! A program with a private server, or with a database on whatever server there is. It says what it
//! has in lines of `name value`, the last of them `ready`. Then it ends as its second argument says,
//! or answers each line of its input with what the server answers to it.
#![forbid(unsafe_code)]

use devpg::{Builder, Server, TestDb, Tether};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{env, process};

fn main() {
    let mut arguments = env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let how = arguments.next().unwrap_or_default();
    if what.starts_with("tether") {
        return tethered(&what);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let builder = arguments.fold(builder(&what), |builder, setting| match setting.split_once('=') {
        Some((name, value)) => builder.setting(name, value),
        None => panic!("not a setting: {setting}"),
    });
    if what == "database" {
        let db = runtime.block_on(devpg::database(setup));
        say("database", db.name());
        let options = db.options();
        finish(&runtime, &options, &how, Some(db));
    } else {
        let server = match builder.start() {
            Ok(server) => server,
            Err(error) => {
                say("error", &error.to_string());
                return;
            }
        };
        say("dir", &server.dir().display().to_string());
        say("sockets", &server.socket_dir().display().to_string());
        say("data", &server.data_dir().display().to_string());
        say("pid", &server.pid().expect("it runs").to_string());
        finish(&runtime, &server.options("postgres"), &how, None);
    }
}

/// Two processes, the first one tethered, alone or with its group; then waits to be ended.
#[expect(clippy::zombie_processes, reason = "its tether ends it, or the test")]
fn tethered(what: &str) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "sleep 100 & echo $!; wait"]).process_group(0);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("sh");
    let mut line = String::new();
    BufReader::new(process.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    let tether = match what {
        "tether-group" => Tether::to_group(&process, "KILL"),
        _ => Tether::to(&process, "KILL"),
    };
    let tether = tether.expect("sh");
    if what == "tether-cut" {
        drop(tether);
    } else {
        std::mem::forget(tether);
    }
    say("first", &process.id().to_string());
    say("second", line.trim());
    say("ready", "");
    let _ = stdin().lines().next();
}

fn builder(what: &str) -> Builder {
    match what {
        "durable" => Server::builder().durable(),
        "tcp" => Server::builder().tcp(),
        _ => Server::builder(),
    }
}

async fn setup(pool: &PgPool) {
    sqlx::query("CREATE TABLE t (n int)").execute(pool).await.expect("create");
}

fn finish(runtime: &tokio::runtime::Runtime, options: &PgConnectOptions, how: &str, db: Option<TestDb>) {
    say("ready", "");
    match how {
        "panic" => panic!("as it was told"),
        "exit" => process::exit(3),
        "abort" => process::abort(),
        "answer" => {
            while let Some(line) = stdin().lines().next() {
                let sql = line.expect("a line");
                let answer = runtime.block_on(async {
                    let mut connection = PgConnection::connect_with(options).await?;
                    let row =
                        sqlx::query_scalar::<_, String>(AssertSqlSafe(sql)).fetch_one(&mut connection).await;
                    connection.close().await?;
                    row
                });
                say("answer", &answer.unwrap_or_else(|error| format!("{error}")));
            }
        }
        // a session that does not wait for anything, so that it would outlive its postmaster
        "busy" => runtime.block_on(async {
            let mut busy = PgConnection::connect_with(options).await.expect("connect");
            let mut watch = PgConnection::connect_with(options).await.expect("connect");
            let endless = async {
                let end = sqlx::query("DO $$ BEGIN LOOP END LOOP; END $$").execute(&mut busy).await;
                panic!("{end:?}");
            };
            let report = async {
                let active = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO%'";
                let pid: i32 = loop {
                    if let Some(pid) =
                        sqlx::query_scalar(active).fetch_optional(&mut watch).await.expect("select")
                    {
                        break pid;
                    }
                };
                say("backend", &pid.to_string());
            };
            tokio::join!(endless, report);
        }),
        _ => drop(db),
    }
}

fn say(name: &str, value: &str) {
    let mut out = stdout().lock();
    writeln!(out, "{name} {}", value.replace('\n', "; ")).and_then(|()| out.flush()).expect("stdout");
}
