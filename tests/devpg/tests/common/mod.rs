#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// A directory of its own for one test, to be empty in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("devpg-test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = env::temp_dir().join(name);
        fs::create_dir(&dir).expect("create");
        Scratch(dir.canonicalize().expect("canonicalize"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).expect("read").map(|entry| entry.expect("entry").path()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program in `tests/program`, with its server in this directory.
pub fn child(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devpg-child"));
    command
        .args(arguments)
        .env("TMPDIR", scratch.path())
        .env_remove("DATABASE_URL")
        .env_remove("DEVPG_PROGRAMS");
    command.env("RUST_BACKTRACE", "0").process_group(0);
    command
}

pub struct Running {
    pub process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: HashMap<String, String>,
}

/// Starts it, and reads what it says up to `ready`, or to its end.
pub fn run(command: &mut Command) -> Running {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = piped.spawn().expect("spawn");
    let lines = BufReader::new(process.stdout.take().expect("stdout")).lines();
    let mut running = Running { process, lines, said: HashMap::new() };
    running.hear("ready");
    running
}

impl Running {
    /// Reads what it says up to this.
    pub fn hear(&mut self, last: &str) -> bool {
        for line in self.lines.by_ref() {
            let line = line.expect("a line");
            let (name, value) = line.split_once(' ').expect("name value");
            self.said.insert(name.into(), value.into());
            if name == last {
                return true;
            }
        }
        false
    }

    #[track_caller]
    pub fn said(&self, name: &str) -> &str {
        self.said.get(name).unwrap_or_else(|| panic!("it did not say {name}, but {:?}", self.said))
    }

    pub fn ask(&mut self, sql: &str) -> String {
        writeln!(self.process.stdin.as_mut().expect("stdin"), "{sql}").expect("write");
        assert!(self.hear("answer"), "it is gone");
        self.said("answer").into()
    }

    pub fn dir(&self) -> PathBuf {
        self.said("dir").into()
    }

    pub fn postmaster(&self) -> u32 {
        self.said("pid").parse().expect("a number")
    }

    pub fn signal(&mut self, signal: &str) {
        kill(signal, &self.process.id().to_string());
        self.process.wait().expect("wait");
    }
}

/// A test that failed must not leave it behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal to a process, or with a minus sign to a process group.
pub fn kill(signal: &str, target: &str) {
    let done = Command::new("/bin/sh").args(["-c", "kill -\"$1\" \"$2\"", "sh", signal, target]).status();
    assert!(done.expect("sh").success(), "kill -s {signal} {target}");
}

/// Waits, for a bounded time, until this is so.
#[track_caller]
pub fn eventually(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A zombie is not alive: it only waits for its parent, which here may be a slow init.
pub fn alive(pid: u32) -> bool {
    let stat = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().expect("ps");
    let stat = String::from_utf8_lossy(&stat.stdout).trim().to_owned();
    !stat.is_empty() && !stat.starts_with('Z')
}

/// The processes that work in this directory, or did before it was deleted. Known on Linux only.
pub fn processes_in(dir: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let working =
        |process: &PathBuf| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    processes.map(|entry| entry.path()).filter(working).collect()
}

/// The System V segment that a server holds while it runs.
pub fn segment_of(dir: &Path) -> String {
    let file = fs::read_to_string(dir.join("data/postmaster.pid")).unwrap_or_default();
    file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default().into()
}

pub fn segment_exists(segment: &str) -> bool {
    let list = Command::new("ipcs").arg("-m").output().expect("ipcs");
    String::from_utf8_lossy(&list.stdout).split_whitespace().any(|word| word == segment)
}

#[track_caller]
pub fn assert_gone(scratch: &Scratch, dir: &Path, segment: &str) {
    eventually("the directory is gone", || !dir.exists() && scratch.entries().is_empty());
    eventually("no process is left", || processes_in(dir).is_empty());
    eventually("the segment is gone", || segment.is_empty() || !segment_exists(segment));
}
