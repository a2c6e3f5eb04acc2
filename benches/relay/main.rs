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

mod backlog;
mod bare;
mod sides;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use devpg::Server;
use harness::{Aim, Cpu, Network, Plan, Report, Round, interleaved, pool};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::outbox::{Event, Relay};

use backlog::{Layout, Outbox};
use sides::{drains_bare, drains_by_relay, window_bare, window_of_relays};

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

/// Its publisher acknowledges at once, and counts. Its lease is longer than a pause.
fn relay(pool: PgPool, count: &Arc<AtomicU64>) -> Relay {
    let count = Arc::clone(count);
    let publisher = move |_event: Event| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    };
    Relay::new(pool, publisher).lease(LEASE)
}

fn most_events(plan: Plan) -> i64 {
    let set = std::env::var("BENCH_EVENTS").ok().map(|most| most.parse().expect("BENCH_EVENTS is a number"));
    set.unwrap_or(if plan.is_trial { 20_000 } else { 1_000_000 })
}

const LEASE: Duration = Duration::from_secs(1800);
