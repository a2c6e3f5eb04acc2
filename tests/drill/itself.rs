//! This program once more, as a process of its own, and this one's hold on it.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::signal::signal;

/// One of the tests that are none. Killed when this is dropped.
pub(crate) struct Itself {
    name: &'static str,
    log: File,
    child: Mutex<Option<Child>>,
}

impl Itself {
    /// Not yet running.
    pub(crate) fn new(name: &'static str, log: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        Self { name, log, child: Mutex::default() }
    }

    /// At once, and for good: SIGKILL.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// In place of the one before, if that still runs. The command is this program, or what runs it.
    pub(crate) fn start(&self, command: &mut Command) {
        self.kill();
        command
            .args(["--exact", self.name, "--nocapture", "--test-threads=1"])
            .env("DRILL_PARENT", std::process::id().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::from(self.log.try_clone().unwrap()));
        *self.child() = Some(command.spawn().unwrap());
    }

    /// Tells it to stop, in order.
    pub(crate) fn stops(&self) -> Result<(), String> {
        self.signal("TERM");
        let Some(mut child) = self.child().take() else { return Ok(()) };
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err("does not stop".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// It stands still for so long, and knows nothing of it.
    pub(crate) async fn stands_still(&self, time: Duration) {
        self.signal("STOP");
        tokio::time::sleep(time).await;
        self.signal("CONT");
    }

    /// Its id is not another's: it has not been waited for.
    fn signal(&self, name: &str) {
        if let Some(child) = &*self.child() {
            assert!(signal(name, child.id()));
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Itself {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In the other process: a parent that was killed cannot say goodbye.
pub(crate) fn end_with_parent() {
    let parent: u32 = std::env::var("DRILL_PARENT").unwrap().parse().unwrap();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent || through_faketime(parent) {
            std::thread::sleep(Duration::from_millis(200));
        }
        std::process::exit(0);
    });
}

fn through_faketime(parent: u32) -> bool {
    std::env::var_os("FAKETIME").is_some() && Path::new(&format!("/proc/{parent}")).exists()
}
