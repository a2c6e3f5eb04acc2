use crate::places::Account;
use crate::watchdog::{self, Watchdog};
use crate::{Builder, Error, options};
use sqlx::postgres::PgConnectOptions;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

/// How long a server may take to start, with a crash to recover from on a busy machine, or to stop.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running PostgreSQL of this process alone. It is stopped, and its directory deleted, when this
/// value is dropped or the process is gone, whichever comes first.
///
/// ```
/// let server = devpg::Server::builder().setting("wal_level", "logical").start()?;
/// assert!(server.url("postgres").starts_with("postgresql://"));
/// # Ok::<(), devpg::Error>(())
/// ```
pub struct Server {
    layout: Layout,
    /// None after it was killed or stopped.
    postmaster: Mutex<Option<Child>>,
    watchdog: Option<Watchdog>,
}

/// What a server is made of, apart from its processes.
pub(crate) struct Layout {
    pub(crate) programs: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) sockets: PathBuf,
    pub(crate) account: Option<Account>,
    pub(crate) port: u16,
    /// For TCP; the Unix socket is in a directory that is closed to others.
    pub(crate) password: Option<String>,
    pub(crate) arguments: Vec<OsString>,
}

impl Layout {
    /// A PostgreSQL program, with an environment that says nothing.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(&self.dir).stdin(Stdio::null()).process_group(0); // out of reach of Ctrl-C
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C");
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    pub(crate) fn cannot_run(&self, program: &str, error: &io::Error) -> Error {
        let (program, dir) = (self.programs.join(program), &self.dir);
        let who =
            self.account.as_ref().map(|a| format!(" as the user {}, who must be able to reach both", a.name));
        Error(format!(
            "cannot run {} in {}{}: {error}",
            program.display(),
            dir.display(),
            who.unwrap_or_default()
        ))
    }

    /// Starts the postmaster, and waits until it accepts connections.
    pub(crate) fn launch(&self) -> Result<Child, Error> {
        let log = fs::OpenOptions::new().append(true).create(true).open(&self.log);
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|e| Error(format!("{}: {e}", self.log.display())))?;
        let mut command = self.command("postgres");
        command.args(&self.arguments).stdout(out).stderr(err);
        let mut postmaster = command.spawn().map_err(|e| self.cannot_run("postgres", &e))?;
        let started = Instant::now();
        while !self.is_ready(postmaster.id()) {
            let ended = postmaster.try_wait().ok().flatten();
            if ended.is_none() && started.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            let _ = postmaster.kill();
            let _ = postmaster.wait();
            let how = ended.map_or("did not become ready".into(), |status| format!("ended ({status})"));
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            return Err(Error(format!("postgres {how}: {}", last_lines(&log))));
        }
        Ok(postmaster)
    }

    /// postmaster.pid starts with the process id (a killed server leaves an old file), and line 8 is the state.
    fn is_ready(&self, pid: u32) -> bool {
        let file = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        let mut lines = file.lines();
        lines.next().and_then(|l| l.parse().ok()) == Some(pid)
            && lines.nth(6).is_some_and(|l| l.trim() == "ready")
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

impl Server {
    /// A server with other than the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A throw-away server: fast, and without durability.
    pub fn start() -> Result<Server, Error> {
        Builder::default().start()
    }

    pub(crate) fn new(layout: Layout, postmaster: Child, watchdog: Watchdog) -> Server {
        Server { layout, postmaster: Mutex::new(Some(postmaster)), watchdog: Some(watchdog) }
    }

    /// Connect options for one of its databases, through its Unix socket. `postgres` is one that every
    /// server has.
    pub fn options(&self, database: &str) -> PgConnectOptions {
        options::by_socket(&self.layout.sockets, self.layout.port, database)
    }

    /// The same as [`options`](Self::options), as a URL for other programs, such as psql.
    pub fn url(&self, database: &str) -> String {
        options::url(&self.layout.sockets, self.layout.port, database)
    }

    /// Connect options through 127.0.0.1, with the password that it asks for there.
    ///
    /// # Panics
    ///
    /// If the server was made without [`Builder::tcp`].
    #[track_caller]
    pub fn tcp_options(&self, database: &str) -> PgConnectOptions {
        options::by_tcp(self.port(), self.password(), database)
    }

    /// The port on 127.0.0.1; it stays the same after a restart.
    ///
    /// # Panics
    ///
    /// If the server was made without [`Builder::tcp`].
    #[track_caller]
    pub fn port(&self) -> u16 {
        self.layout.password.as_ref().map(|_| self.layout.port).expect("a server made with Builder::tcp")
    }

    /// The password of the role `postgres`, for connections through 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If the server was made without [`Builder::tcp`].
    #[track_caller]
    pub fn password(&self) -> &str {
        self.layout.password.as_deref().expect("a server made with Builder::tcp")
    }

    /// The directory of its Unix socket.
    pub fn socket_dir(&self) -> &Path {
        &self.layout.sockets
    }

    /// The directory of its own, with all that belongs to it.
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.layout.data
    }

    /// The directory with `initdb`, `postgres`, and maybe other programs of the same version.
    pub fn programs(&self) -> &Path {
        &self.layout.programs
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read(&self.layout.log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    pub(crate) fn log_end(&self) -> String {
        last_lines(&self.log())
    }

    /// The process id of its postmaster, unless it was killed or stopped.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster().as_ref().map(Child::id)
    }

    /// Ends the postmaster and all its processes with SIGKILL, at once: a crash. Blocks until they are
    /// gone.
    pub fn kill(&self) -> Result<(), Error> {
        let mut postmaster = self.postmaster();
        if let Some(mut process) = postmaster.take() {
            let killed = process.kill().and_then(|()| process.wait());
            killed.map_err(|e| Error(format!("cannot kill the postmaster: {e}")))?;
        }
        watchdog::kill_all(&self.layout.dir)
    }

    /// Stops it in order, ending all connections (a fast shutdown). Blocks until it has stopped.
    pub fn stop(&self) -> Result<(), Error> {
        let mut postmaster = self.postmaster();
        let Some(process) = postmaster.as_mut() else { return Ok(()) };
        let kill =
            Command::new("/bin/sh").args(["-c", "kill -s INT $1", "sh", &process.id().to_string()]).status();
        kill.map_err(|e| Error(format!("/bin/sh: {e}")))?;
        let started = Instant::now();
        while process.try_wait().map_err(|e| Error(format!("postgres: {e}")))?.is_none() {
            if started.elapsed() > PATIENCE {
                return Err(Error(format!("postgres does not stop: {}", self.log_end())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        *postmaster = None;
        Ok(())
    }

    /// Stops it if it runs, and starts it again, after a [`kill`](Self::kill) with crash recovery. Its
    /// addresses stay the same. Blocks until it accepts connections.
    pub fn restart(&self) -> Result<(), Error> {
        self.stop()?;
        let mut postmaster = self.postmaster();
        watchdog::kill_all(&self.layout.dir)?; // what outlived a postmaster that someone else killed
        *postmaster = Some(self.layout.launch()?);
        Ok(())
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.watchdog.take()); // it stops the server and deletes the directory
        if let Some(mut process) = self.postmaster().take() {
            let _ = process.kill(); // in case that someone killed the watchdog
            let _ = process.wait();
        }
        if self.layout.dir.exists() {
            drop(Watchdog::start(&self.layout.dir, Some(&self.layout.sockets)));
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("dir", &self.layout.dir)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}
