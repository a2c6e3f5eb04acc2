//! Where and with what a result was got.

use std::fs;
use std::process::Command;

use sqlx::PgPool;

/// What is worth knowing about this machine.
pub(crate) fn facts() -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| {
        facts.push((name.to_owned(), value.unwrap_or_else(|| "unknown".to_owned())));
    };
    fact("processor", field("/proc/cpuinfo", "model name"));
    fact("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string()));
    fact("memory", field("/proc/meminfo", "MemTotal"));
    fact("kernel", output("uname", &["-sr"]));
    fact("rustc", output("rustc", &["--version"]));
    fact("revision", output("git", &["describe", "--always", "--dirty", "--exclude", "*"]));
    fact("load at start", fs::read_to_string("/proc/loadavg").ok().map(|load| first_words(&load, 3)));
    facts
}

/// The settings of the server that bear on speed.
pub(crate) async fn settings(pool: &PgPool) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    for name in ["server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers"] {
        let value: String = sqlx::query_scalar("select pg_catalog.current_setting($1)")
            .bind(name)
            .fetch_one(pool)
            .await
            .expect("a setting");
        settings.push((format!("postgres {name}"), value));
    }
    settings
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn first_words(text: &str, count: usize) -> String {
    text.split(' ').take(count).collect::<Vec<_>>().join(" ")
}
