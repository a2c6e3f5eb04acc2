//! Other processes that end with this one.

use crate::Error;
use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Waits for the end of its input: then the program is gone.
const END: &str = r#"
trap '' HUP INT QUIT TERM PIPE
cd /
while read -r _; do :; done
kill -s "$1" -- "$2"
"#;

/// Ends a process as soon as this one is gone, however that ended. While this one lives it does
/// nothing, and it goes when it is dropped: the process is then its owner's to end.
///
/// ```
/// let mut process = std::process::Command::new("sleep").arg("60").spawn()?;
/// let tether = devpg::Tether::to(&process, "KILL")?;
/// process.kill()?;
/// drop(tether); // before `wait`, after which the process id may be another's
/// process.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Tether {
    watchdog: Child,
    /// Held open as long as this process lives.
    _input: Option<ChildStdin>,
}

impl Tether {
    /// Sends a signal, such as `KILL`, to the process.
    ///
    /// # Errors
    ///
    /// If `/bin/sh` cannot be run.
    pub fn to(process: &Child, signal: &str) -> Result<Tether, Error> {
        Tether::start(signal, process.id())
    }

    /// Sends a signal to the whole process group that the process leads.
    ///
    /// # Errors
    ///
    /// If `/bin/sh` cannot be run.
    pub fn to_group(leader: &Child, signal: &str) -> Result<Tether, Error> {
        Tether::start(signal, format_args!("-{}", leader.id()))
    }

    /// In a process group of its own, out of reach of Ctrl-C.
    fn start(signal: &str, target: impl Display) -> Result<Tether, Error> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", END, "sh", signal, &target.to_string()]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut watchdog = command.spawn().map_err(|e| Error(format!("cannot run /bin/sh: {e}")))?;
        let input = watchdog.stdin.take();
        Ok(Tether { watchdog, _input: input })
    }
}

impl Drop for Tether {
    fn drop(&mut self) {
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}
