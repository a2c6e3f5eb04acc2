//! What is measured, side by side.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use devpg::Server;
use harness::{Cpu, Round, Side, pool};
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::backlog::Outbox;
use crate::bare::Bare;
use crate::relay;

/// All that waits, again and again.
pub(crate) async fn drains_by_relay(outbox: &Arc<Outbox>) -> Side<'static> {
    let relay = relay(pool(outbox.server, outbox.database, 1).await, &outbox.gone);
    drains(outbox, move || {
        let relay = relay.clone();
        async move { relay.run_once().await.expect("a round").published }
    })
}

pub(crate) async fn drains_bare(outbox: &Arc<Outbox>) -> Side<'static> {
    let bare = Arc::new(Mutex::new(Bare::connect(outbox).await));
    drains(outbox, move || {
        let bare = Arc::clone(&bare);
        async move { bare.lock().await.round().await }
    })
}

fn drains<F, Fut>(outbox: &Arc<Outbox>, round: F) -> Side<'static>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = u64> + Send,
{
    let (outbox, round) = (Arc::clone(outbox), Arc::new(round));
    Box::new(move |time| {
        let (outbox, round) = (Arc::clone(&outbox), Arc::clone(&round));
        Box::pin(async move {
            let mut measured = Measured::default();
            while measured.elapsed < time {
                outbox.fill_up().await;
                let start = Start::now(outbox.server);
                let mut left = u64::try_from(outbox.backlog).expect("a count");
                while left > 0 {
                    left -= round().await;
                }
                measured.add(&start, outbox.backlog.unsigned_abs());
            }
            measured.into()
        })
    })
}

/// A relay that goes on as soon as nobody else holds the one connection of its pool.
struct Paused {
    pool: PgPool,
    held: Option<PoolConnection<Postgres>>,
}

/// As many events as fit into the time, through relays that go on.
pub(crate) async fn window_of_relays(outbox: &Arc<Outbox>, count: usize) -> Side<'static> {
    let mut relays = Vec::new();
    for _ in 0..count {
        let pool = pool(outbox.server, outbox.database, 1).await;
        let held = pool.acquire().await.expect("a connection");
        let relay = relay(pool.clone(), &outbox.gone);
        tokio::spawn(async move { relay.run(pending()).await });
        relays.push(Paused { pool, held: Some(held) });
    }
    let (outbox, relays) = (Arc::clone(outbox), Arc::new(Mutex::new(relays)));
    Box::new(move |time| {
        let (outbox, relays) = (Arc::clone(&outbox), Arc::clone(&relays));
        Box::pin(async move {
            outbox.fill_up().await;
            let mut relays = relays.lock().await;
            let before = outbox.gone.load(Ordering::Relaxed);
            let start = Start::now(outbox.server);
            for relay in relays.iter_mut() {
                relay.held = None;
            }
            tokio::time::sleep(time).await;
            for relay in relays.iter_mut() {
                relay.held = Some(relay.pool.acquire().await.expect("a connection"));
            }
            let mut measured = Measured::default();
            measured.add(&start, outbox.gone.load(Ordering::Relaxed) - before);
            measured.into()
        })
    })
}

pub(crate) async fn window_bare(outbox: &Arc<Outbox>, count: usize) -> Side<'static> {
    let mut loops = Vec::new();
    for _ in 0..count {
        loops.push(Bare::connect(outbox).await);
    }
    let (outbox, loops) = (Arc::clone(outbox), Arc::new(Mutex::new(loops)));
    Box::new(move |time| {
        let (outbox, loops) = (Arc::clone(&outbox), Arc::clone(&loops));
        Box::pin(async move {
            outbox.fill_up().await;
            let mut loops = loops.lock().await;
            let (start, mut tasks) = (Start::now(outbox.server), JoinSet::new());
            for mut bare in loops.drain(..) {
                tasks.spawn(async move {
                    let (began, mut events) = (Instant::now(), 0);
                    while began.elapsed() < time {
                        events += bare.round().await;
                    }
                    (bare, events)
                });
            }
            let mut events = 0;
            while let Some(done) = tasks.join_next().await {
                let (bare, own) = done.expect("a loop");
                loops.push(bare);
                events += own;
            }
            let mut measured = Measured::default();
            measured.add(&start, events);
            measured.into()
        })
    })
}

/// When a measured time began. Filling up is not measured.
struct Start {
    server: &'static Server,
    instant: Instant,
    cpu: Option<Cpu>,
}

impl Start {
    fn now(server: &'static Server) -> Self {
        let cpu = Cpu::used(server);
        Self { server, instant: Instant::now(), cpu }
    }
}

#[derive(Default)]
struct Measured {
    elapsed: Duration,
    events: u64,
    cpu: Option<Cpu>,
}

impl Measured {
    fn add(&mut self, start: &Start, events: u64) {
        self.elapsed += start.instant.elapsed();
        self.events += events;
        let cpu = start.cpu.and_then(|before| Some(Cpu::used(start.server)?.since(before)));
        let sum = self.cpu.unwrap_or(Cpu { own: 0.0, server: 0.0 });
        self.cpu = cpu.map(|cpu| Cpu { own: sum.own + cpu.own, server: sum.server + cpu.server });
    }
}

/// How long a single event took is not known.
impl From<Measured> for Round {
    fn from(measured: Measured) -> Self {
        let events = usize::try_from(measured.events).expect("a count");
        Self { cpu: measured.cpu, ..Self::new(measured.elapsed, vec![f64::NAN; events]) }
    }
}
