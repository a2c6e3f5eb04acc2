//! The primary is lost, and a standby that has everything takes its place.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use devpg::Tether;
use sqlx::PgPool;

use crate::faults::Made;
use crate::mixed::{clients, number, settle, summary};
use crate::network::{Fate, Weather};
use crate::random::Random;
use crate::signal::signal;
use crate::site::{Site, admin};

/// A streaming standby of a site's server, without which nothing is committed there.
pub(crate) struct Standby {
    port: u16,
    process: Child,
    tether: Option<Tether>,
    admin: PgPool,
}

impl Standby {
    async fn of(site: &Site) -> Self {
        let server = &site.server;
        let owner = fs::metadata(server.data_dir()).unwrap();
        // Inside of the server's own: it goes when that goes.
        let dir = server.dir().join("standby");
        let program = |name: &str| {
            let mut command = Command::new(server.programs().join(name));
            command.current_dir(server.dir()).stdin(Stdio::null()).process_group(0);
            if fs::metadata("/proc/self").unwrap().uid() == 0 {
                command.uid(owner.uid()).gid(owner.gid());
            }
            command
        };
        let source = format!(
            "host={} port={} user=postgres application_name=standby",
            server.socket_dir().display(),
            server.port()
        );
        let backup = program("pg_basebackup")
            .args(["-d", &source, "-R", "-X", "stream", "-c", "fast", "-D"])
            .arg(&dir)
            .output();
        let backup = backup.unwrap();
        assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = fs::File::create(log(server)).unwrap();
        let process = program("postgres")
            .arg("-D")
            .arg(&dir)
            .args(["-c", &format!("port={port}"), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories=", "-c", "max_connections=60"])
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let admin = admin(server.tcp_options("postgres").port(port));
        // In order: QUIT takes its children with it.
        let tether = Some(Tether::to(&process, "QUIT").unwrap());
        let standby = Self { port, process, tether, admin };
        standby.replicates(site).await;
        standby
    }

    /// From here on a COMMIT is answered when the standby has it.
    async fn replicates(&self, site: &Site) {
        sqlx::query("alter system set synchronous_standby_names = 'standby'")
            .execute(&site.admin)
            .await
            .unwrap();
        sqlx::query("select pg_reload_conf()").execute(&site.admin).await.unwrap();
        let started = Instant::now();
        loop {
            let state: Option<String> = sqlx::query_scalar("select sync_state from pg_stat_replication")
                .fetch_optional(&site.admin)
                .await
                .unwrap();
            if state.as_deref() == Some("sync") {
                return;
            }
            let log = fs::read_to_string(log(&site.server)).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(30), "{state:?}: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_promoted(&self) {
        let promoted: bool =
            sqlx::query_scalar("select pg_promote(true, 60)").fetch_one(&self.admin).await.unwrap();
        assert!(promoted);
    }
}

fn log(server: &devpg::Server) -> PathBuf {
    server.dir().join("standby.log")
}

impl Drop for Standby {
    fn drop(&mut self) {
        // In order: QUIT takes its children with it.
        signal("QUIT", self.process.id());
        drop(self.tether.take());
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_lost_under_load_takes_nothing_acknowledged_with_it() {
    let seconds = number("DRILL_SECONDS").unwrap_or(8);
    let seed = number("DRILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("failover: DRILL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut site = Site::with(&[2, 3, 5]).await;
    let standby = Standby::of(&site).await;
    let until = Instant::now() + Duration::from_secs(seconds);
    let (all, running) = clients(&site, &mut random, until);

    // Some COMMITs are on their way, or without an answer, when it happens.
    tokio::time::sleep(Duration::from_millis(1000 * seconds / 3 + random.below(500))).await;
    for replica in &site.replicas {
        replica.network.next_commit(Fate::Unanswered);
    }
    site.replicas[0].network.next_commit(Fate::Late(Duration::from_millis(random.below(300))));
    tokio::time::sleep(Duration::from_millis(random.below(100))).await;
    site.server.kill().unwrap();
    standby.is_promoted().await;
    for replica in &site.replicas {
        replica.network.leads_to(standby.port);
        replica.network.turns(Weather::Cut);
        replica.network.turns(Weather::Clear);
    }
    let before: i64 =
        sqlx::query_scalar("select count(*) from effect").fetch_one(&standby.admin).await.unwrap();
    running.join_all().await;

    site.admin = standby.admin.clone();
    site.promoted = Some(standby);
    let (intents, broken) = settle(&site, &all, &mut random).await;
    summary(&all, &intents, &Made::from([("primary lost", 1)]), &broken);
    assert!(broken.is_empty(), "DRILL_SEED={seed}:\n{}", broken.join("\n"));
    let after: i64 = sqlx::query_scalar("select count(*) from effect").fetch_one(&site.admin).await.unwrap();
    assert!(before > 0 && after > before, "no load before, or after: {before}, {after}");
    site.went_well();
}
