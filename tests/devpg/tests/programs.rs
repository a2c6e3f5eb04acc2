//! Where the PostgreSQL programs come from.

mod common;

use common::{Scratch, child, run};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const REMEDIES: [&str; 4] =
    ["apt install postgresql", "brew install postgresql", "PG_BIN_DIR", "DATABASE_URL"];

#[track_caller]
fn error(command: &mut Command) -> String {
    run(command).said("error").to_owned()
}

#[test]
fn the_error_names_the_remedies() {
    let scratch = Scratch::new();
    let mut command = child(&scratch, &["server", "return"]);
    command.env("DEVPG_PROGRAMS", "download").env("DEVPG_DOWNLOADS", "file:///nonexistent");
    command.env("XDG_CACHE_HOME", scratch.path());
    let error = error(&mut command);
    assert!(
        error.starts_with("no PostgreSQL programs (initdb, postgres) found on this machine; "),
        "{error}"
    );
    for remedy in REMEDIES {
        assert!(error.contains(remedy), "{remedy} is missing: {error}");
    }
    let cache = scratch.path().join("devpg");
    assert_eq!(fs::read_dir(&cache).map(Iterator::count).unwrap_or_default(), 0, "it left something");
}

#[test]
fn the_digest_is_checked() {
    if Command::new("curl").arg("--version").output().is_err() {
        return eprintln!("no curl here");
    }
    let scratch = Scratch::new();
    let version = scratch.path().join("18.4.0");
    fs::create_dir(&version).expect("create");
    for target in [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "x86_64-apple-darwin",
        "aarch64-apple-darwin",
    ] {
        fs::write(version.join(format!("postgresql-18.4.0-{target}.tar.gz")), "not it").expect("write");
    }
    let mut command = child(&scratch, &["server", "return"]);
    command.env("DEVPG_PROGRAMS", "download").env("XDG_CACHE_HOME", scratch.path().join("cache"));
    command.env("DEVPG_DOWNLOADS", format!("file://{}", scratch.path().display()));
    let error = error(&mut command);
    let digest = "06121725c433ccd0469b52730a723e66a9c1e31c67c42b1dba6b501f0bf94c9d"; // of `not it`
    assert!(error.contains(&format!("wrong SHA-256 digest: {digest}")), "{error}");
    assert_eq!(
        fs::read_dir(scratch.path().join("cache/devpg")).expect("cache").count(),
        0,
        "it left something"
    );
}

#[test]
fn a_directory_without_programs() {
    let scratch = Scratch::new();
    let error = error(child(&scratch, &["server", "return"]).env("PG_BIN_DIR", "/nonexistent/bin"));
    assert!(error.contains("PG_BIN_DIR is /nonexistent/bin"), "{error}");
}

#[test]
fn programs_from_nowhere() {
    let scratch = Scratch::new();
    let error = error(child(&scratch, &["server", "return"]).env("DEVPG_PROGRAMS", "nowhere"));
    assert!(error.contains("`nowhere`"), "{error}");
}

#[test]
#[ignore = "downloads 12 MB"]
fn download() {
    let scratch = Scratch::new();
    let cache = scratch.path().join("cache");
    let start = || {
        let mut command = child(&scratch, &["durable", "answer"]);
        command.env("DEVPG_PROGRAMS", "download").env("XDG_CACHE_HOME", &cache);
        let mut running = run(&mut command);
        let version = running.ask("SELECT version()");
        assert!(version.starts_with("PostgreSQL 18.4 "), "{version}");
    };
    std::thread::scope(|scope| {
        // two at the same time, without anything in the cache
        scope.spawn(start);
        scope.spawn(start);
    });
    let kept: Vec<PathBuf> =
        fs::read_dir(cache.join("devpg")).expect("cache").flatten().map(|e| e.path()).collect();
    assert_eq!(kept, [cache.join("devpg/18.4.0")]);
    let inside = fs::read_dir(&kept[0]).expect("read").flatten().map(|entry| entry.file_name());
    let rest: Vec<_> =
        inside.filter(|name| name == "pg.tar.gz" || name == "wheel" || name.len() > 12).collect();
    assert!(rest.is_empty(), "left in it: {rest:?}");
    start(); // from the cache
}
