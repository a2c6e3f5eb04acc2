//! A relay that was killed is succeeded before its lease ends.

use std::future::pending;
use std::time::{Duration, Instant};

use tower_idempotency::outbox::{self, Event, MemoryPublisher, Relay};

use super::check::count;
use super::process::{Process, Role};
use super::{SUBJECT, prepare};
use crate::site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_killed_in_the_middle_of_a_publish_is_succeeded_at_once() {
    let server = site::server();
    let admin = site::admin(server.options("postgres"));
    prepare(&admin).await;
    sqlx::raw_sql("create table arrival (event uuid not null)").execute(&admin).await.unwrap();
    let log = site::log();
    let killed = Process::start(Role::StuckRelay, &server, "-", &log);
    let mut tx = admin.begin().await.unwrap();
    let events: Vec<Event> =
        (1..=10).map(|n| Event::new(SUBJECT, n % 5, "thing.changed").json(&n).unwrap()).collect();
    outbox::publish_all(&mut tx, &events).await.unwrap();
    tx.commit().await.unwrap();
    // All five aggregates are being published, each with a lease of an hour.
    until("the first of each arrives", async || count(&admin, "select count(*) from arrival").await == 5)
        .await;

    let published = MemoryPublisher::default();
    let successor = Relay::new(admin.clone(), published.clone()).poll_interval(Duration::from_millis(100));
    let looking = successor.clone();
    let running = tokio::spawn(async move { looking.run(pending()).await });
    until("both are registered", async || {
        count(&admin, "select count(*) from idempotency.outbox_relay").await == 2
    })
    .await;
    for _ in 0..10 {
        // It does look, and it lets the other one live.
        assert_eq!(successor.run_once().await.unwrap(), Default::default());
    }
    killed.kill();
    let died = Instant::now();
    until("all is delivered", async || {
        count(&admin, "select count(*) from idempotency.outbox_lane").await == 0
    })
    .await;
    println!("succeeded and delivered after {:?}", died.elapsed());
    let mut delivered = published.events();
    delivered.sort_by_key(|event| event.aggregate_id().to_owned());
    let mut expected = events;
    expected.sort_by_key(|event| event.aggregate_id().to_owned());
    assert_eq!(delivered, expected, "each once, and in order");
    until("it is forgotten", async || {
        count(&admin, "select count(*) from idempotency.outbox_relay").await == 1
    })
    .await;
    running.abort();
    drop(std::fs::remove_file(&log));
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_secs(60), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
