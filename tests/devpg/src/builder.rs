use crate::places::{self, Account};
use crate::server::{Layout, Server};
use crate::watchdog::Watchdog;
use crate::{Error, options, programs};
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::{fs, process};

/// Makes a private server. See [`Server::builder`].
#[derive(Debug, Clone, Default)]
pub struct Builder {
    durable: bool,
    tcp: bool,
    base: Option<PathBuf>,
    settings: Vec<(String, String)>,
}

impl Builder {
    /// A server that keeps what it has committed: `fsync`, `synchronous_commit` and `full_page_writes`
    /// are on, and its directory is on a disk, not in memory. For crash tests and benches.
    ///
    /// Without it the server is a throw-away one: these three are off, and it is in memory if there is
    /// room.
    pub fn durable(mut self) -> Builder {
        self.durable = true;
        self
    }

    /// The server listens on 127.0.0.1 too, at a free port, and asks for a password there. For
    /// connections through proxies: see [`Server::tcp_options`].
    pub fn tcp(mut self) -> Builder {
        self.tcp = true;
        self
    }

    /// One setting, as in `postgresql.conf`; it wins over what this crate sets.
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Builder {
        self.settings.push((name.into(), value.to_string()));
        self
    }

    /// The server's own directory is made in this one. It must exist, and the server's user must be
    /// able to reach it.
    pub fn base_dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.base = Some(dir.into());
        self
    }

    /// Starts the server and waits until it accepts connections. Blocks: about a second.
    pub fn start(self) -> Result<Server, Error> {
        let programs = programs::find()?;
        let (watchdog, dir, sockets) = self.directories()?;
        let account = Account::instead_of_root(&dir)?;
        if let Some(account) = &account {
            account.give(&dir)?;
            if sockets != dir {
                account.give(&sockets)?;
            }
        }
        let mut layout = Layout {
            programs,
            data: dir.join("data"),
            log: dir.join("log"),
            dir,
            sockets,
            account,
            port: 5432,
            password: self.tcp.then(|| format!("{}{}", places::random(), places::random())),
            arguments: Vec::new(),
        };
        self.initdb(&layout)?;
        let mut tries = 0;
        loop {
            if self.tcp {
                layout.port = free_port();
            }
            layout.arguments = self.arguments(&layout);
            match layout.launch() {
                Ok(postmaster) => return Ok(Server::new(layout, postmaster, watchdog)),
                Err(error) if self.tcp && tries < 10 && error.0.contains("could not bind") => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The server's directory and that of its socket, in the first place where they can be made.
    fn directories(&self) -> Result<(Watchdog, PathBuf, PathBuf), Error> {
        let bases = match &self.base {
            Some(base) => vec![base.clone()],
            None if self.durable => places::disk_bases(),
            None => places::fast_bases(),
        };
        let name = format!("devpg-{}-{}", process::id(), places::random());
        let mut why = String::from("set TMPDIR to a directory on a disk");
        for base in bases {
            let base = match base.canonicalize() {
                Ok(base) => base,
                Err(error) => {
                    why = format!("{}: {error}", base.display());
                    continue;
                }
            };
            let dir = base.join(&name);
            let sockets = if places::fits_socket(&dir) { dir.clone() } else { Path::new("/tmp").join(&name) };
            let apart = (sockets != dir).then_some(sockets.as_path());
            let watchdog = Watchdog::start(&dir, apart)?;
            let directories = [Some(dir.as_path()), apart];
            let created = directories
                .into_iter()
                .flatten()
                .try_for_each(|d| places::create_private(d).map_err(|e| format!("{}: {e}", d.display())));
            match created {
                Ok(()) => return Ok((watchdog, dir, sockets)),
                Err(error) => why = error,
            }
        }
        Err(Error(format!("no place for the server's directory: {why}")))
    }

    fn initdb(&self, layout: &Layout) -> Result<(), Error> {
        let mut command = layout.command("initdb");
        command.args(["-U", options::ROLE, "-E", "UTF8", "--locale=C", "-N", "--auth-local=trust"]);
        if !self.durable {
            command.arg("--wal-segsize=1"); // less to write
        }
        if let Some(password) = &layout.password {
            let file = layout.dir.join("password");
            let written = fs::write(&file, password).map_err(|e| Error(format!("{}: {e}", file.display())));
            written.and_then(|()| layout.account.as_ref().map_or(Ok(()), |a| a.give(&file)))?;
            command.arg("--auth-host=scram-sha-256").arg("--pwfile").arg(&file);
        } else {
            command.arg("--auth-host=reject");
        }
        // Not to a pipe: it must be able to come to its end even if this process does not.
        let output = layout.dir.join("initdb.log");
        let file = fs::File::create(&output).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = file.map_err(|e| Error(format!("{}: {e}", output.display())))?;
        command.arg("-D").arg(&layout.data).stdout(out).stderr(err);
        let status = command.status().map_err(|e| layout.cannot_run("initdb", &e))?;
        if status.success() {
            return Ok(());
        }
        let output = fs::read(&output).unwrap_or_default();
        Err(Error(format!("initdb failed ({status}): {}", String::from_utf8_lossy(&output).trim())))
    }

    /// The arguments of `postgres`. Of two that set the same, the last counts.
    fn arguments(&self, layout: &Layout) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["-D".into(), layout.data.clone().into()];
        let mut set =
            |name: &str, value: &str| arguments.extend(["-c".into(), format!("{name}={value}").into()]);
        set("port", &layout.port.to_string());
        set("listen_addresses", if self.tcp { "127.0.0.1" } else { "" });
        set("unix_socket_directories", &format!("\"{}\"", layout.sockets.display()));
        // Many tests with a pool each; elsewhere than on Linux each costs a file descriptor.
        set("max_connections", if cfg!(target_os = "linux") { "500" } else { "200" });
        // in files below the data directory: they go away with it, even after a SIGKILL
        set("dynamic_shared_memory_type", "mmap");
        let switch = if self.durable { "on" } else { "off" };
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            set(name, switch);
        }
        if !self.durable {
            set("max_wal_size", "1GB");
        }
        for (name, value) in &self.settings {
            set(name, value);
        }
        arguments
    }
}

/// Below the ports that systems give to outgoing connections: free at a restart, too.
fn free_port() -> u16 {
    let random = u64::from_str_radix(&places::random(), 16).unwrap_or_default();
    let start = (random % 16384) as u16;
    let ports = (0..16384).map(|n| 16384 + (start + n) % 16384);
    ports.into_iter().find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap_or(5432)
}
