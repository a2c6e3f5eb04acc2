//! However a program ends, nothing of its server is left.

mod common;

use common::{
    Running, Scratch, alive, assert_gone, child, eventually, kill, processes_in, run, segment_exists,
    segment_of,
};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Starts a server, ends the program, and looks for what is left.
#[track_caller]
fn check(arguments: &[&str], end: impl FnOnce(&mut Running)) {
    let scratch = Scratch::new();
    let mut running = run(&mut child(&scratch, arguments));
    let (dir, postmaster) = (running.dir(), running.postmaster());
    let segment = segment_of(&dir);
    if arguments[1] == "answer" || arguments[1] == "busy" {
        assert!(alive(postmaster) && dir.join("data/PG_VERSION").exists());
        assert!(segment_exists(&segment), "{segment}");
        if cfg!(target_os = "linux") {
            assert!(processes_in(&dir).len() > 2);
        }
    }
    end(&mut running);
    running.process.wait().expect("wait");
    eventually("the postmaster is gone", || !alive(postmaster));
    assert_gone(&scratch, &dir, &segment);
}

#[test]
fn return_from_main() {
    check(&["server", "return"], |_| {});
}

#[test]
fn panic() {
    check(&["server", "panic"], |_| {});
}

#[test]
fn exit() {
    check(&["server", "exit"], |_| {});
}

#[test]
fn abort() {
    check(&["server", "abort"], |_| {});
}

#[test]
fn end_of_input() {
    check(&["server", "answer"], |running| drop(running.process.stdin.take()));
}

#[test]
fn sigkill() {
    check(&["server", "answer"], |running| running.signal("KILL"));
}

#[test]
fn sigkill_of_a_durable_server() {
    let scratch = Scratch::new();
    let mut running = run(child(&scratch, &["durable", "answer"]).env_remove("TMPDIR"));
    let (dir, segment) = (running.dir(), segment_of(&running.dir()));
    assert!(dir.exists());
    running.signal("KILL");
    assert_gone(&scratch, &dir, &segment);
}

#[test]
fn sigterm() {
    check(&["server", "answer"], |running| running.signal("TERM"));
}

#[test]
fn sighup() {
    check(&["server", "answer"], |running| running.signal("HUP"));
}

/// The terminal sends it to the whole foreground process group.
#[test]
fn control_c() {
    check(&["server", "answer"], |running| kill("INT", &format!("-{}", running.process.id())));
}

#[test]
fn sigkill_to_the_process_group() {
    check(&["server", "answer"], |running| kill("KILL", &format!("-{}", running.process.id())));
}

#[test]
fn the_postmaster_was_killed_before() {
    check(&["server", "answer"], |running| {
        kill("KILL", &running.postmaster().to_string());
        running.signal("KILL");
    });
}

#[test]
fn a_busy_backend_outlives_its_postmaster() {
    check(&["server", "busy"], |running| {
        assert!(running.hear("backend"));
        let backend = running.said("backend").parse().expect("a number");
        kill("KILL", &running.postmaster().to_string());
        assert!(alive(backend));
        running.signal("KILL");
        eventually("the backend is gone", || !alive(backend));
    });
}

#[test]
fn a_stopped_postmaster_does_not_hear_the_request() {
    check(&["server", "answer"], |running| {
        kill("STOP", &running.postmaster().to_string());
        running.signal("KILL");
    });
}

/// By a test that cleans up too early, say, or by a program that sweeps temporary directories.
#[test]
fn someone_else_deleted_the_directory() {
    check(&["server", "busy"], |running| {
        assert!(running.hear("backend"));
        kill("KILL", &running.postmaster().to_string());
        eventually("it is deleted", || fs::remove_dir_all(running.dir()).is_ok());
        assert!(alive(running.said("backend").parse().expect("a number")));
        running.signal("KILL");
    });
}

/// From the first moment on: here the watchdog knows no process id, and PostgreSQL writes at all times.
#[test]
fn sigkill_during_the_start() {
    type Reached = fn(&Path) -> bool;
    let moments: [(&str, Reached); 6] = [
        ("directory", |_| true),
        ("initdb", |dir| dir.join("data").exists()),
        ("bootstrap", |dir| dir.join("data/postmaster.pid").exists()),
        ("catalogs", |dir| dir.join("data/base/1/PG_VERSION").exists()),
        ("launch", |dir| dir.join("log").exists()),
        ("postmaster", |dir| dir.join("log").exists() && dir.join("data/postmaster.pid").exists()),
    ];
    for (moment, reached) in moments {
        let scratch = Scratch::new();
        let mut command = child(&scratch, &["server", "answer"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("spawn");
        eventually(moment, || scratch.entries().iter().any(|dir| reached(dir)));
        let dir = scratch.entries().pop().expect("a directory");
        let segment = segment_of(&dir);
        process.kill().expect("kill");
        process.wait().expect("wait");
        assert_gone(&scratch, &dir, &segment);
    }
}

#[test]
fn a_server_that_does_not_start() {
    let scratch = Scratch::new();
    let running = run(&mut child(&scratch, &["server", "answer", "shared_buffers=nonsense"]));
    assert!(running.said("error").contains("shared_buffers"), "{}", running.said("error"));
    assert!(scratch.entries().is_empty(), "{:?}", scratch.entries());
}

#[test]
fn two_programs_do_not_disturb_each_other() {
    let scratch = Scratch::new();
    let mut first = run(&mut child(&scratch, &["server", "answer"]));
    let mut second = run(&mut child(&scratch, &["server", "answer"]));
    assert_ne!(first.dir(), second.dir());
    let (dir, segment) = (first.dir(), segment_of(&first.dir()));
    first.signal("KILL");
    eventually("the first is gone", || !dir.exists() && processes_in(&dir).is_empty());
    assert!(!segment_exists(&segment));
    assert_eq!(second.ask("SELECT 'still here'"), "still here");
    assert_eq!(fs::read_dir(scratch.path()).expect("read").count(), 1);
}

/// The watchdog itself can be killed; then the value's drop does its work.
#[test]
#[cfg(target_os = "linux")]
fn without_the_watchdog() {
    let scratch = Scratch::new();
    let server = devpg::Server::builder().base_dir(scratch.path()).start().expect("start");
    let (dir, segment) = (server.dir().to_owned(), segment_of(server.dir()));
    let mark = format!("DEVPG_DIR={}", dir.display());
    let processes = fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("entry").path());
    let watchdogs = processes.filter(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    });
    let watchdogs: Vec<_> = watchdogs.collect();
    assert_eq!(watchdogs.len(), 1);
    kill("KILL", watchdogs[0].file_name().and_then(|name| name.to_str()).expect("a number"));
    drop(server);
    assert_gone(&scratch, &dir, &segment);
}
