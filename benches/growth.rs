//! What becomes of it all when the table grows.
//!
//! Three databases of one server: one whose table of records is empty but for what the bench itself
//! claims, one with 100,000 records in it, one with 10,000,000 (`BENCH_ROWS` sets another number).
//! The records are copies of one that the layer has made, under keys of their own that are spread
//! over the whole index, as are the keys that are claimed. A claim is measured from the call until the
//! closure runs, with one client: statement by statement, without HTTP and without the commit. A replay
//! is that of a process that has not met the key, without HTTP, too: all sides make the same statements.
//!
//! Then a tenth of that many expired records is swept in the largest table, while sixteen clients send
//! new keys. They write a row each that nobody else wants: who waits for a lock waits for the sweeper.
//! Sessions that wait for one are looked for all the time, on the side without a sweep, too.
//!
//! An hour's traffic is 50 requests a second, sent as fast as they are answered, so that autovacuum
//! gets a small part of the time that it would have: there are more dead tuples than after an hour.

#[path = "growth/tables.rs"]
mod tables;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use devpg::Server;
use futures_util::future::BoxFuture;
use harness::{Aim, Clients, Plan, Report, Round, Side, interleaved};
use http_body_util::{BodyExt as _, Full};
use sqlx::PgPool;
use tokio::sync::Mutex as AsyncMutex;
use tower::ServiceExt as _;
use tower_idempotency::{Error, Operation, Sweeper};
use uuid::Uuid;

use tables::{Table, key, request};

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let rows = rows(plan);
    let mut report = Report::new("growth", "A table of records that grows", plan);
    let server = harness::durable(&[]).await;
    tables::has_room(&server, rows);
    let [empty, some, many] = [0, rows.min(100_000), rows].map(|rows| Table::create(&server, rows));
    let (empty, some, many) = (empty.await, some.await, many.await);
    report.server(&empty.pool).await;
    report.setting("autovacuum", "the server's defaults");

    one_by_one(&mut report, plan, &server, [&empty, &some, &many]).await;
    beside_a_sweep(&mut report, plan, &server, &many).await;
    drop((empty, some, many));
    an_hour(&mut report, &server, HOUR.min(rows)).await;
    report.finish();
}

fn rows(plan: Plan) -> u64 {
    let rows = std::env::var("BENCH_ROWS").ok();
    let rows = rows.map(|rows| rows.parse().unwrap_or_else(|_| panic!("BENCH_ROWS is not a number: {rows}")));
    if plan.is_trial { 1_000 } else { rows.unwrap_or(10_000_000) }
}

/// Claims, replays and sweeps, in tables of three sizes.
async fn one_by_one(report: &mut Report, plan: Plan, server: &Server, tables: [&Table; 3]) {
    let claims = interleaved(plan, server, tables.map(claims)).await;
    compare(report, "claim", tables, &claims, "p50", "µs", Round::p50, Aim::AtMost(1.3));
    compare(report, "claim", tables, &claims, "p99", "µs", Round::p99, Aim::None);
    compare(report, "claim to commit", tables, &claims, "throughput", "/s", Round::rate, Aim::None);

    let replays = interleaved(plan, server, tables.map(replays)).await;
    compare(report, "replay", tables, &replays, "p50", "µs", Round::p50, Aim::None);
    compare(report, "replay", tables, &replays, "p99", "µs", Round::p99, Aim::None);

    let sweeps = interleaved(plan, server, tables.map(sweeps)).await;
    compare(report, "sweep of 1,000", tables, &sweeps, "p50", "µs", Round::p50, Aim::None);
}

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
fn compare(
    report: &mut Report,
    name: &str,
    tables: [&Table; 3],
    rounds: &[Vec<Round>; 3],
    what: &str,
    unit: &'static str,
    value: fn(&Round) -> f64,
    aim: Aim,
) {
    let [empty, ..] = rounds.each_ref().map(|rounds| rounds.iter().map(value).collect::<Vec<_>>());
    for (table, rounds) in tables.iter().zip(rounds).skip(1) {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        let name = format!("{name}, {} records: {what}", thousands(table.rows));
        report.ratio(name, unit, ("full", &values), ("empty", &empty), aim);
    }
}

fn claims(table: &Table) -> Side<'static> {
    let operation = Operation::new(&table.pool, tables::OPERATION);
    Box::new(move |time| {
        let operation = operation.clone();
        Box::pin(async move {
            let mut latencies = Vec::new();
            let start = Instant::now();
            while start.elapsed() < time {
                let key = Uuid::new_v4().to_string();
                let began = Instant::now();
                let claimed = operation.run(&key, "input", async |_tx| Ok::<_, Error>(elapsed(began))).await;
                latencies.push(claimed.expect("a new key").into_value());
            }
            Round::new(start.elapsed(), latencies)
        })
    })
}

/// Each by a layer that knows of no key: one that had settled or replayed this key before, as it soon
/// has in a table of one record, asks the database less.
fn replays(table: &Table) -> Side<'static> {
    let (pool, rows) = (table.pool.clone(), table.rows);
    Box::new(move |time| {
        let pool = pool.clone();
        Box::pin(async move {
            let mut latencies = Vec::new();
            let start = Instant::now();
            while start.elapsed() < time {
                let (router, request) = (tables::router(&pool), request(&key(any(rows), rows)));
                let began = Instant::now();
                let Ok(replay) = router.oneshot(request).await;
                let is_replay = replay.headers().contains_key("idempotent-replayed");
                assert!(is_replay, "{replay:?}");
                replay.into_body().collect().await.expect("a stored body");
                latencies.push(elapsed(began));
            }
            Round::new(start.elapsed(), latencies)
        })
    })
}

fn sweeps(table: &Table) -> Side<'static> {
    let pool = table.pool.clone();
    Box::new(move |time| {
        let pool = pool.clone();
        Box::pin(async move {
            let sweeper = Sweeper::new(pool.clone());
            let mut latencies = Vec::new();
            let start = Instant::now();
            while start.elapsed() < time {
                tables::expired(&pool, 1_000).await;
                let began = Instant::now();
                assert_eq!(sweeper.sweep_once().await.expect("a sweep").deleted, 1_000);
                latencies.push(elapsed(began));
            }
            Round::new(start.elapsed(), latencies)
        })
    })
}

/// Clients with new keys, with and without a sweeper that has much to do.
async fn beside_a_sweep(report: &mut Report, plan: Plan, server: &Server, table: &Table) {
    let expired = (table.rows / 10).max(1_000);
    tables::expired(&table.pool, expired).await;
    tables::tidy(&table.pool).await;
    let address = table.serve().await;
    let swept = Arc::new(Sweep::new(table, expired));
    let with = beside(address, &table.pool, Some(Arc::clone(&swept))).await;
    let without = beside(address, &table.pool, None).await;
    let waits = [Arc::clone(&with.1), Arc::clone(&without.1)];
    let [with, without] = interleaved(plan, server, [with.0, without.0]).await;

    let name = format!("beside a sweep of {}", thousands(expired));
    let mut compare = |what: &str, unit, value: fn(&Round) -> f64, aim| {
        let values = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
        let (with, without) = (values(&with), values(&without));
        report.ratio(format!("{name}: {what}"), unit, ("with", &with), ("without", &without), aim);
    };
    compare("p99", "µs", Round::p99, Aim::AtMost(2.0));
    compare("p50", "µs", Round::p50, Aim::None);
    compare("throughput", "requests/s", Round::rate, Aim::None);
    let [with, without] = waits.map(|waits| waits.load(Ordering::Relaxed) as f64);
    report.fact(format!("{name}: sessions seen waiting for a lock"), "", with, Aim::AtMost(0.0));
    report.fact("without a sweep: sessions seen waiting for a lock", "", without, Aim::None);
    let (rows, time) = swept.done();
    report.fact(format!("{name}: swept"), "rows/s", rows as f64 / time.as_secs_f64(), Aim::None);

    // What is left of it, undisturbed.
    if tables::left(&table.pool).await < expired / 2 {
        tables::expired(&table.pool, expired).await;
    }
    let before = swept.done();
    while swept.batch().await > 0 {}
    let (rows, time) = swept.done();
    let (rows, time) = (rows - before.0, time - before.1);
    report.fact("a sweep alone", "rows/s", rows as f64 / time.as_secs_f64(), Aim::None);
    let batches = swept.batches.lock().unwrap_or_else(PoisonError::into_inner);
    let part = (batches.len() / 10).max(1);
    let of = |batches: &[f64]| harness::Spread::of(batches).median;
    let slower = of(&batches[batches.len() - part..]) / of(&batches[..part]);
    report.fact("a sweep's last batches to its first", "", slower, Aim::None);
}

/// A sweep, and how long its batches took.
struct Sweep {
    sweeper: Sweeper,
    pool: PgPool,
    expired: u64,
    batches: Mutex<Vec<f64>>,
    rows: AtomicU64,
}

impl Sweep {
    fn new(table: &Table, expired: u64) -> Self {
        Self {
            sweeper: Sweeper::new(table.pool.clone()),
            pool: table.pool.clone(),
            expired,
            batches: Mutex::default(),
            rows: AtomicU64::new(0),
        }
    }

    async fn batch(&self) -> u64 {
        let began = Instant::now();
        let deleted = self.sweeper.sweep_once().await.expect("a sweep").deleted;
        if deleted > 0 {
            self.batches.lock().unwrap_or_else(PoisonError::into_inner).push(elapsed(began));
            self.rows.fetch_add(deleted, Ordering::Relaxed);
        }
        deleted
    }

    /// Sweeps for that long, though nothing may be left: then there is more.
    async fn run(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            if self.batch().await == 0 {
                tables::expired(&self.pool, self.expired).await;
            }
        }
    }

    fn done(&self) -> (u64, Duration) {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        (self.rows.load(Ordering::Relaxed), Duration::from_secs_f64(batches.iter().sum::<f64>() / 1e6))
    }
}

/// A side of sixteen clients, and how many sessions were seen waiting for a lock meanwhile.
async fn beside(
    address: SocketAddr,
    pool: &PgPool,
    sweep: Option<Arc<Sweep>>,
) -> (Side<'static>, Arc<AtomicU64>) {
    let clients = Arc::new(AsyncMutex::new(Clients::connect(address, CLIENTS).await));
    let (pool, waits) = (pool.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&waits);
    let side = move |time| -> BoxFuture<'static, Round> {
        let (clients, sweep) = (Arc::clone(&clients), sweep.clone());
        let (pool, waits) = (pool.clone(), Arc::clone(&counted));
        Box::pin(async move {
            let mut clients = clients.lock().await;
            let sweeping = async {
                if let Some(sweep) = sweep {
                    sweep.run(time).await;
                }
            };
            let looking = async {
                let start = Instant::now();
                while start.elapsed() < time {
                    waits.fetch_add(tables::waiting(&pool).await, Ordering::Relaxed);
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::join!(clients.run(time, StatusCode::CREATED, new), sweeping, looking).0
        })
    };
    (Box::new(side), waits)
}

/// Traffic through the layer, and what it leaves in the table.
async fn an_hour(report: &mut Report, server: &Server, requests: u64) {
    let table = Table::create(server, 0).await;
    let mut clients = Clients::connect(table.serve().await, CLIENTS).await;
    let mut sent = 0;
    while sent < requests {
        sent += clients.run(Duration::from_secs(1), StatusCode::CREATED, new).await.latencies.len() as u64;
    }
    table.pool.close().await;
    let after = tables::after(&server.tcp_options(&table.name)).await;
    let name = format!("after {} requests", thousands(sent));
    report.fact(format!("{name}: updates that were HOT"), "", after.hot, Aim::AtLeast(0.95));
    report.fact(format!("{name}: dead tuples"), "", after.dead, Aim::None);
    report.fact(format!("{name}: a record, on disk"), "bytes", after.table / after.rows, Aim::None);
    report.fact(format!("{name}: its indexes"), "bytes", after.indexes / after.rows, Aim::None);
    report.fact(format!("{name}: autovacuum came"), "times", after.vacuumed, Aim::None);
}

fn new(_client: usize) -> Request<Full<Bytes>> {
    request(&Uuid::new_v4().to_string())
}

/// One of so many, or the first if there are none.
fn any(rows: u64) -> u64 {
    Uuid::new_v4().as_u64_pair().0.checked_rem(rows).unwrap_or(0)
}

/// Microseconds.
fn elapsed(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| str::from_utf8(part).ok()).collect();
    parts.join(",")
}

const CLIENTS: usize = 16;
const HOUR: u64 = 180_000;
const LOOK: Duration = Duration::from_millis(5);
