//! A PgBouncer in transaction mode, for more than one test program.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use devpg::Tether;

/// A running PgBouncer. It ends when it is dropped, or with this process. Its files are in the
/// server's directory, and go with that.
pub(crate) struct Bouncer {
    pub(crate) port: u16,
    program: PathBuf,
    dir: PathBuf,
    /// Not root: it refuses to be.
    account: Option<(u32, u32)>,
    child: Mutex<Option<(Child, Tether)>>,
}

impl Bouncer {
    /// Before a server, for these databases: lines of its configuration. Their connections to the
    /// server are fewer than their clients, who share them.
    pub(crate) fn start(program: PathBuf, server: &devpg::Server, databases: &str, connections: u32) -> Self {
        let owner = fs::metadata(server.data_dir()).unwrap();
        let account = (fs::metadata("/proc/self").unwrap().uid() == 0).then(|| (owner.uid(), owner.gid()));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = server.dir().join("pgbouncer");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let file = dir.join("pgbouncer.ini");
        // In turn: two statements outside of a transaction meet two backends.
        let ini = format!(
            "[databases]\n{databases}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
             max_client_conn = 2000\nserver_round_robin = 1\nserver_login_retry = 1\n\
             query_wait_timeout = 5\nignore_startup_parameters = extra_float_digits\n"
        );
        fs::write(&file, ini).unwrap();
        for path in [&dir, &file] {
            if let Some((uid, gid)) = account {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        let bouncer = Self { port, program, dir, account, child: Mutex::default() };
        bouncer.restart();
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(20), "pgbouncer does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        bouncer
    }

    pub(crate) fn kill(&self) {
        if let Some((mut child, tether)) = self.child().take() {
            child.kill().unwrap();
            drop(tether);
            child.wait().unwrap();
        }
    }

    pub(crate) fn restart(&self) {
        self.kill();
        let mut command = Command::new(&self.program);
        if let Some((uid, gid)) = self.account {
            command.uid(uid).gid(gid);
        }
        command.current_dir(&self.dir).arg("-q").arg(self.dir.join("pgbouncer.ini")).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let tether = Tether::to(&child, "KILL").unwrap();
        *self.child() = Some((child, tether));
    }

    fn child(&self) -> MutexGuard<'_, Option<(Child, Tether)>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `None` where it is not installed, and need not be.
pub(crate) fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin".into(), "/usr/local/sbin".into()];
    let mut places = std::env::split_paths(&path).chain(usual).map(|dir: PathBuf| dir.join("pgbouncer"));
    let found = places.find(|program| program.is_file());
    if found.is_none() {
        let required = std::env::var("TOWER_IDEMPOTENCY_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|name| name.trim() == "pgbouncer");
        assert!(!required, "pgbouncer is not installed");
        eprintln!("SKIPPED: pgbouncer is not installed");
    }
    found
}
