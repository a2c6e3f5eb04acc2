//! All that stands: one durable server, replicas of the service, and a network for each.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::failover::Standby;
use crate::network::Network;
use crate::pgbouncer::Bouncer;
use crate::service::{Service, Settings};
use crate::wire::Frame;

pub(crate) struct Replica {
    pub(crate) network: Network,
    pub(crate) service: Arc<Service>,
}

pub(crate) struct Site {
    pub(crate) server: devpg::Server,
    pub(crate) replicas: Vec<Replica>,
    /// Past the networks, with more than one connection: some end when the server does.
    pub(crate) admin: PgPool,
    /// Between the networks and the server, if there is one.
    pub(crate) bouncer: Option<Bouncer>,
    /// After a failover: what the server's place is taken by.
    pub(crate) promoted: Option<Standby>,
    log: PathBuf,
    failed: bool,
}

/// A server that keeps what it has committed whatever is killed. What a killed process has written is
/// safe with the kernel; only a power failure, which is not made here, would need `fsync`.
pub(crate) fn server() -> devpg::Server {
    let builder = devpg::Server::builder().durable().tcp();
    builder.setting("max_connections", 60).setting("fsync", "off").start().unwrap()
}

/// What a service must know of a server that it reaches through this port.
pub(crate) fn settings(server: &devpg::Server, port: u16, pool: u32) -> Settings {
    Settings {
        port,
        user: "postgres".to_owned(),
        password: server.password().to_owned(),
        pool,
        unnamed: false,
        serializable: false,
        ahead: None,
    }
}

/// Where services log; deleted when all went well.
pub(crate) fn log() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("drill-{}-{next}.log", std::process::id()))
}

pub(crate) fn admin(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(3)
        .acquire_timeout(Duration::from_secs(10))
        .connect_lazy_with(options.application_name("admin"))
}

pub(crate) async fn migrate(pool: &PgPool) {
    tower_idempotency::migrate(pool).await.unwrap();
    sqlx::raw_sql(
        "create table effect (
           id bigint generated always as identity primary key,
           intent bigint not null,
           at timestamptz not null default clock_timestamp()
         );
         create table parent (id bigint primary key);
         create table child (parent bigint references parent deferrable initially deferred)",
    )
    .execute(pool)
    .await
    .unwrap();
}

impl Site {
    /// Replicas with pools of these sizes. Of more than two the last one isolates strictly.
    pub(crate) async fn with(pools: &[u32]) -> Self {
        let server = server();
        let mut replicas = Vec::new();
        let log = log();
        for (at, pool) in pools.iter().enumerate() {
            let network = Network::to(server.port()).await;
            let settings = settings(&server, network.port, *pool);
            let settings = Settings { serializable: at > 1, ..settings };
            let service = Arc::new(Service::start(settings, &log));
            replicas.push(Replica { network, service });
        }
        Self::of(server, replicas, log).await
    }

    /// One replica, with a function that decides what each of its messages meets.
    pub(crate) async fn deciding(
        server: devpg::Server,
        decide: impl Fn(&Frame) -> crate::network::Fate + Send + Sync + 'static,
    ) -> Self {
        let log = log();
        let network = Network::deciding(server.port(), decide).await;
        let service = Arc::new(Service::start(settings(&server, network.port, 2), &log));
        Self::of(server, vec![Replica { network, service }], log).await
    }

    pub(crate) async fn of(server: devpg::Server, replicas: Vec<Replica>, log: PathBuf) -> Self {
        let admin = admin(server.options("postgres"));
        migrate(&admin).await;
        Self { server, replicas, admin, bouncer: None, promoted: None, log, failed: true }
    }

    /// Mends what is broken, and waits until nothing is going on any more.
    pub(crate) async fn calms(&self) -> Result<(), String> {
        for replica in &self.replicas {
            replica.network.calms();
        }
        if self.server.pid().is_none() && self.promoted.is_none() {
            self.server.restart().unwrap();
        }
        for replica in &self.replicas {
            crate::client::idle(replica.service.address).await?;
        }
        self.nothing_is_left().await
    }

    /// No transaction and no lock.
    pub(crate) async fn nothing_is_left(&self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let left: Result<Vec<String>, _> = sqlx::query_scalar(
                "select format('%s: transaction, %s, %s', pid, state, query) from pg_stat_activity
                 where backend_type = 'client backend' and pid <> pg_backend_pid() and xact_start is not null
                 union all
                 select format('%s: advisory lock %s', pid, objid) from pg_locks where locktype = 'advisory'
                 union all
                 select format('prepared %s', gid) from pg_prepared_xacts",
            )
            .fetch_all(&self.admin)
            .await;
            match left {
                Ok(left) if left.is_empty() => return Ok(()),
                left if started.elapsed() > PATIENCE => return Err(format!("left over: {left:?}")),
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// How many effects an intent has.
    pub(crate) async fn effects(&self, intent: i64) -> i64 {
        sqlx::query_scalar("select count(*) from effect where intent = $1")
            .bind(intent)
            .fetch_one(&self.admin)
            .await
            .unwrap()
    }

    /// The log of a site that has kept its promises is of no interest.
    pub(crate) fn went_well(mut self) {
        self.failed = false;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.failed {
            eprintln!("the services' log is {}", self.log.display());
        } else {
            let _ = std::fs::remove_file(&self.log);
        }
    }
}

/// Longer than an unanswered COMMIT is asked about, and than a silent transaction is kept.
const PATIENCE: Duration = Duration::from_secs(40);
