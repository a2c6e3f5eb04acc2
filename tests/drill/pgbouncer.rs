//! The same through PgBouncer in transaction mode.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Answer, Manners, attempt};
use crate::intent::Intent;
use crate::mixed::{drill, number};
use crate::network::Network;
use crate::service::{Service, Settings};
use crate::site::{Replica, Site, server, settings};

/// A running PgBouncer. It ends when it is dropped.
pub(crate) struct Bouncer {
    pub(crate) port: u16,
    program: PathBuf,
    dir: PathBuf,
    /// Not root: it refuses to be.
    account: Option<(u32, u32)>,
    child: Mutex<Option<Child>>,
}

impl Bouncer {
    pub(crate) fn start(program: PathBuf, server: &devpg::Server) -> Self {
        let owner = fs::metadata(server.data_dir()).unwrap();
        let account = (fs::metadata("/proc/self").unwrap().uid() == 0).then(|| (owner.uid(), owner.gid()));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = std::env::temp_dir().join(format!("drill-pgbouncer-{}-{port}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let file = dir.join("pgbouncer.ini");
        fs::write(&file, ini(server, port)).unwrap();
        for path in [&dir, &file] {
            if let Some((uid, gid)) = account {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        let bouncer = Self { port, program, dir, account, child: Mutex::default() };
        bouncer.restart();
        bouncer
    }

    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn restart(&self) {
        self.kill();
        let mut command = Command::new(&self.program);
        if let Some((uid, gid)) = self.account {
            command.uid(uid).gid(gid);
        }
        command.current_dir(&self.dir).arg("-q").arg(self.dir.join("pgbouncer.ini"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        *self.child() = Some(command.spawn().unwrap());
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Fewer connections than its clients have: they share.
fn ini(server: &devpg::Server, port: u16) -> String {
    format!(
        "[databases]\n\
         postgres = host=127.0.0.1 port={} user=postgres password={} dbname=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = 5\n\
         server_round_robin = 1\nserver_login_retry = 1\nquery_wait_timeout = 5\n\
         ignore_startup_parameters = extra_float_digits\n",
        server.port(),
        server.password(),
    )
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

/// Two replicas with more connections than PgBouncer has to the server.
async fn site_through(program: PathBuf, log: &Path) -> Site {
    let server = server();
    let bouncer = Bouncer::start(program, &server);
    let mut replicas = Vec::new();
    for pool in [5, 5] {
        let network = Network::to(bouncer.port).await;
        let settings = Settings { unnamed: true, ..settings(&server, network.port, pool) };
        let service = Arc::new(Service::start(settings, log));
        replicas.push(Replica { network, service });
    }
    let mut site = Site::of(server, replicas, log.to_owned()).await;
    site.bouncer = Some(bouncer);
    site
}

/// The same intent so often at once, each at one of the replicas, until each has the answer.
async fn race(site: &Site, number: i64, refused: bool) -> Vec<Answer> {
    let mut racing = JoinSet::new();
    for n in 0..20 {
        let address = site.replicas[n % site.replicas.len()].service.address;
        racing.spawn(async move {
            let mut intent = Intent { number, refused, answers: Vec::new(), wrong: Vec::new() };
            let started = Instant::now();
            loop {
                let request = intent.request("");
                let answer = attempt(address, &request, Manners::Patient, Duration::from_secs(20)).await;
                let told = format!("{answer:?}");
                if intent.hears(answer) {
                    return intent.answers.pop().expect(&told);
                }
                assert!(told.contains("409") || started.elapsed() < Duration::from_secs(5), "{told}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    racing.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_through_pgbouncer() {
    let Some(program) = program() else { return };
    let site = site_through(program, &crate::site::log()).await;
    for number in 1..=30 {
        let refused = number % 3 == 0;
        let answers = race(&site, number, refused).await;
        let first: Vec<_> = answers.iter().filter(|answer| !answer.replayed).collect();
        assert_eq!(first.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.body == first[0].body), "{answers:?}");
        assert_eq!(site.effects(number).await, i64::from(!refused));
    }
    let reused = crate::client::request("intent-1", r#"{"intent":1,"refused":true}"#, "");
    let address = site.replicas[0].service.address;
    let reused = attempt(address, &reused, Manners::Patient, Duration::from_secs(20)).await.unwrap();
    assert_eq!(reused.status, 422, "{reused:?}");
    site.calms().await.unwrap();
    site.went_well();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_through_pgbouncer_no_intent_is_lost_or_doubled() {
    let Some(program) = program() else { return };
    let site = site_through(program, &crate::site::log()).await;
    drill(site, number("DRILL_SECONDS").unwrap_or(6)).await;
}
