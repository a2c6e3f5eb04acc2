//! Events per second through relays, against the ceiling of their own statements.
//!
//! The ceiling is a loop on one connection that runs the very statements of a relay, in the same
//! portions: claim lanes, read their events, settle them all as acknowledged; nothing is published, no
//! event is made of a row, nothing runs side by side. The relay's publisher acknowledges at once, so what
//! is between the two is what the relay itself costs. Both find the same table, which is filled up again
//! before each turn: they see the same backlog, the same statistics and the same dead rows.
//!
//! - 10 and 1,000 waiting: the time from the first statement until all of them are gone, again and again;
//!   one [`Relay::run_once`] does it, since that is a claim or two.
//! - More waiting: events in a window of time, through [`Relay::run`], which goes on from one window to
//!   the next. Between windows its pool has no connection for it, so that it stops at a statement.
//!
//! An aggregate has 20 events, which were written side by side with those of 49 others, 100 in a
//! transaction. `long`: there are 256 aggregates, which share all events.
//!
//! `BENCH_EVENTS` is the largest backlog; 1,000,000 unless set.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use devpg::Server;
use harness::{Aim, Cpu, Network, Plan, Report, Round, Side, interleaved};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::types::Uuid;
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row as _};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tower_idempotency::migrate;
use tower_idempotency::outbox::{Event, Relay};

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    // Many sides.
    let plan = Plan { time: plan.time / 2, ..plan };
    let most = most_events(plan);
    let mut report =
        Report::new("relay", "Events through a relay: against its own statements, run bare", plan);
    let server: &'static Server = Box::leak(Box::new(harness::durable(&[]).await));
    report.server(&pool(server, "postgres", 1).await).await;
    idle(&mut report, plan, server).await;

    let [ten, thousand, many, all, long] = [
        Outbox::filled(server, "ten", 10, Layout::Short).await,
        Outbox::filled(server, "thousand", 1_000.min(most), Layout::Short).await,
        Outbox::filled(server, "many", 100_000.min(most), Layout::Short).await,
        Outbox::filled(server, "all", most, Layout::Short).await,
        Outbox::filled(server, "long", most, Layout::Long).await,
    ];
    let sides = [
        drains_by_relay(&ten).await,
        drains_bare(&ten).await,
        drains_by_relay(&thousand).await,
        drains_bare(&thousand).await,
        window_of_relays(&many, 1).await,
        window_bare(&many, 1).await,
        window_of_relays(&all, 1).await,
        window_bare(&all, 1).await,
        window_of_relays(&all, 4).await,
        window_bare(&all, 4).await,
        window_of_relays(&long, 1).await,
        window_bare(&long, 1).await,
    ];
    let [ten_r, ten_b, thousand_r, thousand_b, many_r, many_b, all_r, all_b, four_r, four_b, long_r, long_b] =
        interleaved(plan, server, sides).await;

    let aim = Aim::AtLeast(0.8);
    for (name, relay, bare) in [
        (ten.name(), &ten_r, &ten_b),
        (thousand.name(), &thousand_r, &thousand_b),
        (many.name(), &many_r, &many_b),
        (all.name(), &all_r, &all_b),
        (all.name() + ", four", &four_r, &four_b),
        (long.name(), &long_r, &long_b),
    ] {
        let mut compare = |what: &str, unit, value: fn(&Round) -> f64, aim| {
            let (relay, bare) = (values(relay, value), values(bare, value));
            report.ratio(format!("{name}: {what}"), unit, ("relay", &relay), ("bare", &bare), aim);
        };
        compare("throughput", "events/s", Round::rate, aim);
        compare("processor, relay", "µs/event", Round::own_cpu, Aim::None);
        compare("processor, database", "µs/event", Round::server_cpu, Aim::None);
    }
    for (few, relay, bare) in [(&thousand, &thousand_r, &thousand_b), (&many, &many_r, &many_b)] {
        let name = format!("{} against {}", all.name(), few.name());
        for (what, of_all, of_few, aim) in [("relay", &all_r, relay, aim), ("bare", &all_b, bare, Aim::None)]
        {
            let (of_all, of_few) = (values(of_all, Round::rate), values(of_few, Round::rate));
            let name = format!("{name}: {what}");
            report.ratio(name, "events/s", ("the more", &of_all), ("the fewer", &of_few), aim);
        }
    }
    report.finish();
}

fn values(rounds: &[Round], value: fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// What a relay asks of the database while there is nothing to do.
async fn idle(report: &mut Report, plan: Plan, server: &'static Server) {
    let outbox = Outbox::filled(server, "idle", 0, Layout::Short).await;
    let network = Network::to(server.port(), Duration::ZERO);
    let options = server.tcp_options("idle").port(network.port);
    let pool = PgPoolOptions::new().connect_with(options).await.expect("the bench's own server");
    let relay = tokio::spawn(async move { relay(pool, &Arc::default()).run(pending()).await });
    let (settled, time) = if plan.is_trial { (100, 500) } else { (5_000, 20_000) };
    tokio::time::sleep(Duration::from_millis(settled)).await;
    // Background processes of the server use a little, too.
    let (trips, cpu, began) = (network.round_trips(), Cpu::used(server), Instant::now());
    tokio::time::sleep(Duration::from_millis(time)).await;
    let (trips, seconds) = (network.round_trips() - trips, began.elapsed().as_secs_f64());
    report.fact("idle relay: round trips to the database", "1/s", trips as f64 / seconds, Aim::None);
    if let Some(cpu) = cpu.and_then(|before| Some(Cpu::used(server)?.since(before))) {
        report.fact("idle relay: processor, database", "ms/s", cpu.server / 1e3 / seconds, Aim::None);
        report.fact("idle relay: processor, relay", "ms/s", cpu.own / 1e3 / seconds, Aim::None);
    }
    relay.abort();
    drop(outbox);
}

/// A database with a backlog.
struct Outbox {
    server: &'static Server,
    database: &'static str,
    layout: Layout,
    backlog: i64,
    filler: PgPool,
    /// How many events were ever written, and how many are gone.
    written: AtomicI64,
    gone: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
enum Layout {
    Short,
    Long,
}

impl Outbox {
    async fn filled(
        server: &'static Server,
        database: &'static str,
        backlog: i64,
        layout: Layout,
    ) -> Arc<Self> {
        let statement = AssertSqlSafe(format!("create database \"{database}\""));
        sqlx::raw_sql(statement).execute(&pool(server, "postgres", 1).await).await.expect("a database");
        let filler = pool(server, database, 1).await;
        migrate(&filler).await.expect("migrations");
        sqlx::raw_sql("set synchronous_commit = off").execute(&filler).await.expect("a setting");
        let (written, gone) = (AtomicI64::new(0), Arc::default());
        let outbox = Arc::new(Self { server, database, layout, backlog, filler, written, gone });
        outbox.fill_up().await;
        sqlx::raw_sql("analyze idempotency.outbox").execute(&outbox.filler).await.expect("statistics");
        outbox
    }

    /// Writes as many events as are gone.
    async fn fill_up(&self) {
        let gone = i64::try_from(self.gone.load(Ordering::Relaxed)).expect("a count");
        let from = self.written.load(Ordering::Relaxed);
        let to = gone + self.backlog;
        let aggregate = match self.layout {
            Layout::Short => "n / 1000 * 50 + n % 50",
            Layout::Long => "n % 256",
        };
        // Ids in the order of time, as those of `Event` are.
        let statement = format!(
            "do $$ declare first bigint := {from}; begin
             while first < {to} loop
                 insert into idempotency.outbox (id, aggregatetype, aggregateid, type, payload)
                 select (lpad(to_hex(n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
                         || substr(md5(n::text), 4, 15))::uuid,
                     'order', 'order-' || ({aggregate}), 'order.shipped',
                     jsonb_build_object('order', n, 'total', 1250, 'currency', 'EUR', 'carrier', 'Amalgamated Parcels',
                         'address', '12 Canal Street')
                 from generate_series(first, least(first + 100, {to}) - 1) n order by n;
                 commit;
                 first := first + 100;
             end loop; end $$"
        );
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.filler).await.expect("events");
        self.written.store(to.max(from), Ordering::Relaxed);
    }

    fn name(&self) -> String {
        let digits = self.backlog.to_string();
        let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        let layout = match self.layout {
            Layout::Short => "",
            Layout::Long => ", long",
        };
        groups.join(",") + " waiting" + layout
    }
}

/// All that waits, again and again.
async fn drains_by_relay(outbox: &Arc<Outbox>) -> Side<'static> {
    let relay = relay(pool(outbox.server, outbox.database, 1).await, &outbox.gone);
    drains(outbox, move || {
        let relay = relay.clone();
        async move { relay.run_once().await.expect("a round").published }
    })
}

async fn drains_bare(outbox: &Arc<Outbox>) -> Side<'static> {
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
                measured.add(start, outbox.backlog.unsigned_abs());
            }
            measured.into()
        })
    })
}

/// As many events as fit into the time, through relays that go on.
async fn window_of_relays(outbox: &Arc<Outbox>, count: usize) -> Side<'static> {
    let mut relays = Vec::new();
    for _ in 0..count {
        let pool = pool(outbox.server, outbox.database, 1).await;
        let held = pool.acquire().await.expect("a connection");
        let relay = relay(pool.clone(), &outbox.gone);
        tokio::spawn(async move { relay.run(pending()).await });
        relays.push((pool, Some(held)));
    }
    let relays: Arc<Mutex<Vec<(PgPool, Option<PoolConnection<Postgres>>)>>> = Arc::new(Mutex::new(relays));
    let outbox = Arc::clone(outbox);
    Box::new(move |time| {
        let (outbox, relays) = (Arc::clone(&outbox), Arc::clone(&relays));
        Box::pin(async move {
            outbox.fill_up().await;
            let mut relays = relays.lock().await;
            let before = outbox.gone.load(Ordering::Relaxed);
            let start = Start::now(outbox.server);
            for (_, held) in relays.iter_mut() {
                *held = None;
            }
            tokio::time::sleep(time).await;
            for (pool, held) in relays.iter_mut() {
                *held = Some(pool.acquire().await.expect("a connection"));
            }
            let mut measured = Measured::default();
            measured.add(start, outbox.gone.load(Ordering::Relaxed) - before);
            measured.into()
        })
    })
}

async fn window_bare(outbox: &Arc<Outbox>, count: usize) -> Side<'static> {
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
            measured.add(start, events);
            measured.into()
        })
    })
}

/// Its publisher acknowledges at once, and counts. Its lease is longer than a pause.
fn relay(pool: PgPool, count: &Arc<AtomicU64>) -> Relay {
    let count = Arc::clone(count);
    let publisher = move |_event: Event| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    };
    Relay::new(pool, publisher).lease(LEASE)
}

/// A relay's statements, and nothing else.
struct Bare {
    connection: PoolConnection<Postgres>,
    gone: Arc<AtomicU64>,
}

impl Bare {
    async fn connect(outbox: &Outbox) -> Self {
        let pool = pool(outbox.server, outbox.database, 1).await;
        Self { connection: pool.acquire().await.expect("a connection"), gone: Arc::clone(&outbox.gone) }
    }

    async fn round(&mut self) -> u64 {
        let settled = round(&mut self.connection).await.expect("the relay's statements");
        self.gone.fetch_add(settled, Ordering::Relaxed);
        settled
    }
}

/// Claims, reads, settles. How many events?
async fn round(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let claim = Uuid::new_v4();
    let lease = sqlx::postgres::types::PgInterval::try_from(LEASE).expect("an interval");
    // Not persistent: nor are they in the relay, since plans must follow the tables' sizes.
    let claimed = sqlx::query(include_str!("../src/sql/outbox_claim.sql"))
        .bind(claim)
        .bind(lease)
        .bind(LANES)
        .bind(RETRIES)
        .bind(EVENTS_A_LOOK)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    if claimed.is_empty() {
        return Ok(0);
    }
    let (mut types, mut names) = (Vec::<String>::new(), Vec::<String>::new());
    for row in &claimed {
        types.push(row.try_get("aggregatetype")?);
        names.push(row.try_get("aggregateid")?);
    }
    let events = sqlx::query(include_str!("../src/sql/outbox_read.sql"))
        .bind(&types)
        .bind(&names)
        .bind(BATCH)
        .bind(BYTES_A_READ)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    let (mut ids, mut is_done) = (Vec::<Uuid>::with_capacity(events.len()), vec![true; claimed.len()]);
    for row in &events {
        ids.push(row.try_get("id")?);
        let lane = usize::try_from(row.try_get::<i64, _>("lane")? - 1).expect("the number of a lane");
        is_done[lane] = row.try_get::<i64, _>("found")? < BATCH;
    }
    ids.sort_unstable();
    let lanes = claimed.len();
    sqlx::query(include_str!("../src/sql/outbox_settle.sql"))
        .bind(&ids)
        .bind(&types)
        .bind(&names)
        .bind(vec![claim; lanes])
        .bind(is_done)
        .bind(vec![None::<Uuid>; lanes])
        .bind(vec![false; lanes])
        .bind(vec![0_i32; lanes])
        .bind(vec![0_i32; lanes])
        .bind(vec![0_f64; lanes])
        .bind(vec![None::<&str>; lanes])
        .persistent(false)
        .fetch_all(connection)
        .await?;
    Ok(ids.len() as u64)
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
    fn add(&mut self, start: Start, events: u64) {
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

async fn pool(server: &Server, database: &str, connections: u32) -> PgPool {
    let options = server.tcp_options(database);
    let pool = PgPoolOptions::new().max_connections(connections).connect_with(options).await;
    pool.expect("the bench's own server")
}

fn most_events(plan: Plan) -> i64 {
    let set = std::env::var("BENCH_EVENTS").ok().map(|most| most.parse().expect("BENCH_EVENTS is a number"));
    set.unwrap_or(if plan.is_trial { 20_000 } else { 1_000_000 })
}

const LEASE: Duration = Duration::from_secs(1800);

// As the relay has them, by default or by itself.
const LANES: i64 = 64;
const RETRIES: i64 = 16;
const BATCH: i64 = 100;
const BYTES_A_READ: i64 = 16 << 20;
const EVENTS_A_LOOK: i64 = 1_000;
