//! Events from one transaction to one effect, while everything between the two is killed: relays,
//! consumers, the broker and the database, as processes of their own.

mod check;
mod faults;
#[path = "../it/support/nats.rs"]
mod nats;
mod pgbouncer;
pub(crate) mod process;
#[path = "../it/support/required.rs"]
mod required;
mod succession;
mod writers;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::{consumer, stream};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::mixed::number;
use crate::random::Random;
use crate::signal::signal;
use crate::site;
use nats::Nats;
use process::{Process, Role};
use required::absent;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_every_committed_event_has_one_effect_and_arrives_in_order() {
    drill(number("DRILL_SECONDS").unwrap_or(10)).await;
}

/// Ten minutes of it, or `DRILL_SECONDS`: `cargo test --test drill -- --ignored`.
#[ignore = "it takes ten minutes"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_drill_of_events() {
    drill(number("DRILL_SECONDS").unwrap_or(600)).await;
}

async fn drill(seconds: u64) {
    let Some(scene) = Scene::start().await else { return };
    let seed = number("DRILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("outbox drill: DRILL_SEED={seed} DRILL_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let writing = writers::start(&scene, &mut random, until);
    let made = faults::make(&scene, random.fork(), until).await;
    let written = writing.join_all().await;
    let broken = check::broken(&scene).await;
    for (kind, times) in &made {
        println!("outbox drill: {times:>5} x {kind}");
    }
    println!("outbox drill: {}, {} violations", writers::summary(&written), broken.len());
    let told = format!("DRILL_SEED={seed} DRILL_SECONDS={seconds}, logged in {}", scene.log.display());
    assert!(broken.is_empty(), "{told}:\n{}", broken.join("\n"));
    assert!(written.iter().all(|writer| writer.committed > 0), "a drill of nothing");
    drop(std::fs::remove_file(&scene.log));
}

/// A database for both sides, a broker, and two relays and two consumers at least.
struct Scene {
    server: devpg::Server,
    nats: Mutex<Nats>,
    relays: Vec<Process>,
    consumers: Vec<Process>,
    admin: PgPool,
    log: PathBuf,
}

impl Scene {
    /// None where there is no broker, and need not be one.
    async fn start() -> Option<Self> {
        let nats = tokio::task::block_in_place(Nats::start)?;
        let server = site::server();
        let admin = site::admin(server.options("postgres"));
        prepare(&admin).await;
        let config = stream::Config {
            // As short as it may be: what comes twice is a consumer's to recognise.
            duplicate_window: Duration::from_millis(100),
            ..nats.stream(&[SUBJECT]).await.cached_info().config.clone()
        };
        let context = nats.context().await;
        context.update_stream(config).await.unwrap();
        let consumer = consumer::pull::Config {
            durable_name: Some(SUBSCRIBER.to_owned()),
            ack_wait: Duration::from_secs(1),
            max_ack_pending: 500,
            ..Default::default()
        };
        context.create_consumer_on_stream(consumer, STREAM).await.unwrap();
        let log = site::log();
        let start = |role: Role, many: usize| {
            (0..many).map(|_| Process::start(role, &server, &nats.url(), &log)).collect()
        };
        let (relays, consumers) = (start(Role::Relay, 3), start(Role::Consumer, 2));
        Some(Self { relays, consumers, admin, log, nats: Mutex::new(nats), server })
    }

    fn nats(&self) -> MutexGuard<'_, Nats> {
        self.nats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whoever must bear what is done to the server.
    fn pool(&self, connections: u32) -> PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(self.server.options("postgres"))
    }
}

async fn prepare(admin: &PgPool) {
    tower_idempotency::migrate(admin).await.unwrap();
    sqlx::raw_sql(
        "create table aggregate (id text primary key, version bigint not null default 0);
         -- The business rows: one for each event, and in its transaction.
         create table placed (event uuid primary key, aggregate text not null, version bigint not null);
         -- What consumers have done. Nothing here keeps them from doing it twice.
         create table effect (
           id bigint generated always as identity primary key,
           event uuid not null, aggregate text not null, version bigint not null
         );
         create table applied (
           id bigint generated always as identity primary key, aggregate text not null, version bigint not null
         );",
    )
    .execute(admin)
    .await
    .unwrap();
}

const STREAM: &str = "events";
const SUBJECT: &str = "thing";
const SUBSCRIBER: &str = "stock";

/// Short, so that it ends while a relay is stopped.
const LEASE: Duration = Duration::from_secs(1);
