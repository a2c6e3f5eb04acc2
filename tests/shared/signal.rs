//! Signals to other processes, for more than one test program.

use std::fmt::Display;
use std::process::{Command, Stdio};

/// To a process that has not been waited for, or to a group where a minus stands before its number.
/// Whether there was one.
pub(crate) fn signal(name: &str, target: impl Display) -> bool {
    let kill = ["-c", "kill -s \"$1\" -- \"$2\"", "sh", name, &target.to_string()];
    Command::new("/bin/sh").args(kill).stderr(Stdio::null()).status().unwrap().success()
}
