//! A process that outlives this one, only to clean up after it.

use crate::Error;
use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The processes of the server in `$DEVPG_DIR`: those that work in it, from `initdb` to the last backend,
/// also if someone has deleted it meanwhile. Without /proc: those that have it in their command line
/// (backends end when their postmaster has).
const PROCESSES: &str = r#"
dir=$DEVPG_DIR
processes() {
  if [ ! -e /proc/self/cwd ]; then pgrep -f "$dir/"; return; fi
  for p in /proc/[0-9]*; do
    if [ "$p/cwd" -ef "$dir" ] || [ "$p/cwd" -ef "$dir/data" ]; then echo "${p#/proc/}"; fi
  done
  [ -e "$dir/data" ] || LC_ALL=C ls -ld /proc/[0-9]*/cwd | while IFS= read -r link; do
    case $link in
      *"/cwd -> $dir (deleted)" | *"/cwd -> $dir/data (deleted)") p=${link%%/cwd -> *}; echo "${p##*/}" ;;
    esac
  done
}
"#;

/// Waits for the end of its input: then the program is gone, and everything it forked has become what
/// it was to become. Asks the server to stop, or lets initdb come to its end, since both take their
/// shared memory with them; then kills what is left, and deletes all. The shared memory of a process
/// that was killed is known from its mappings, and from postmaster.pid.
const CLEAN_UP: &str = r#"
trap '' HUP INT QUIT TERM PIPE
cd /
while read -r _; do :; done
pidfile=$dir/data/postmaster.pid
postmaster=$(head -n 1 "$pidfile")
n=0 grace=0 clean=0 segments=
[ -e "$dir/log" ] || [ ! -e "$dir" ] || grace=100
for pid in $(processes); do
  if [ -e "$dir/log" ] && [ "$pid" = "$postmaster" ]; then kill -s QUIT "$pid" && grace=100; fi
done
while [ $clean -lt 2 ] && [ $n -lt 1000 ]; do
  pids=$(processes)
  if [ -n "$pids" ]; then
    clean=0
    if [ $n -ge $grace ]; then
      kill -s STOP $pids
      segments="$segments $(for pid in $pids; do sed -n \
        -e 's#.* \(/dev/shm/PostgreSQL[.][0-9]*\)$#\1#p' \
        -e 's#^[^ ]* [^ ]* [^ ]* [^ ]* \([0-9]*\) */SYSV.*#\1#p' "/proc/$pid/maps"; done)"
      kill -s KILL $pids
    fi
    sleep 0.02 || sleep 1
  else
    clean=$((clean + 1))
  fi
  n=$((n + 1))
done
for segment in $segments $(sed -n '7s/.* //p' "$pidfile"); do
  case $segment in /*) rm -f "$segment" ;; *) ipcrm -m "$segment" ;; esac
done
rm -rf "$dir" ${DEVPG_SOCKETS:+"$DEVPG_SOCKETS"} || { sleep 1; rm -rf "$dir" ${DEVPG_SOCKETS:+"$DEVPG_SOCKETS"}; }
"#;

/// Kills every process of the server, until there is none. Its System V segment goes too: the next
/// start would remove it, but would first overwrite the file that tells the watchdog of it.
const KILL: &str = r#"
n=0
while pids=$(processes) && [ -n "$pids" ] && [ $n -lt 1000 ]; do
  kill -s KILL $pids
  n=$((n + 1))
done
[ -z "$pids" ] || exit 1
segment=$(sed -n '7s/.* //p' "$dir/data/postmaster.pid")
[ -z "$segment" ] || ipcrm -m "$segment"
exit 0
"#;

fn shell(script: &str, dir: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{PROCESSES}{script}")]).env("DEVPG_DIR", dir);
    let mut path = env::var_os("PATH").unwrap_or_default(); // it must work even where that is nonsense
    path.push(":/usr/bin:/bin:/usr/sbin:/sbin");
    command.env("PATH", path);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Kills every process of the server in this directory.
pub(crate) fn kill_all(dir: &Path) -> Result<(), Error> {
    let done = shell(KILL, dir).status().map_err(|e| Error(format!("/bin/sh: {e}")))?;
    if done.success() { Ok(()) } else { Err(Error::new("processes of the server survived SIGKILL")) }
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    /// Held open as long as this process lives.
    input: Option<ChildStdin>,
}

impl Watchdog {
    /// Watches over directories that need not exist yet: first the watchdog, then what it is to delete.
    /// It is in a process group of its own, out of reach of Ctrl-C.
    pub(crate) fn start(dir: &Path, sockets: Option<&Path>) -> Result<Watchdog, Error> {
        let mut command = shell(CLEAN_UP, dir);
        if let Some(sockets) = sockets {
            command.env("DEVPG_SOCKETS", sockets);
        }
        let mut process =
            command.stdin(Stdio::piped()).spawn().map_err(|e| Error(format!("cannot run /bin/sh: {e}")))?;
        let input = process.stdin.take();
        Ok(Watchdog { process, input })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.input.take()); // it sees the end of its input, and does its work
        let _ = self.process.wait();
    }
}
