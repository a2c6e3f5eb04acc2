//! Outbox and inbox through PgBouncer in transaction mode.

use std::collections::HashMap;
use std::future::pending;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::Inbox;
use tower_idempotency::inbox::Processed;
use tower_idempotency::outbox::{self, Event, MemoryPublisher, Relay};

use super::check::count;
use super::{SUBJECT, SUBSCRIBER, prepare};
use crate::pgbouncer::{program, start};
use crate::site;

const EVENTS: i64 = 300;
const AGGREGATES: i64 = 10;

async fn publish(pool: PgPool, writer: i64) {
    for n in 0..EVENTS / 3 {
        let mut tx = pool.begin().await.unwrap();
        let aggregate = (writer + n) % AGGREGATES;
        let count = "insert into aggregate (id, version) values ($1, 1)
             on conflict (id) do update set version = aggregate.version + 1 returning version";
        let version: i64 = sqlx::query_scalar(count)
            .bind(aggregate.to_string())
            .persistent(false)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        let event = Event::new(SUBJECT, aggregate, "thing.changed").json(&version).unwrap();
        outbox::publish(&mut tx, &event).await.unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_in_order_through_pgbouncer() {
    let Some(program) = program() else { return };
    let server = site::server();
    let admin = site::admin(server.options("postgres"));
    prepare(&admin).await;
    let bouncer = start(program, &server);
    let options = server.tcp_options("postgres").port(bouncer.port).statement_cache_capacity(0);
    let pool = PgPoolOptions::new().max_connections(10).connect_lazy_with(options);
    let published = MemoryPublisher::default();
    let relays: Vec<_> = (0..2)
        .map(|_| {
            let relay = Relay::new(pool.clone(), published.clone())
                .unnamed_statements()
                .poll_interval(Duration::from_millis(50));
            tokio::spawn(async move { relay.run(pending()).await })
        })
        .collect();
    let writers: Vec<_> = (0..3).map(|writer| tokio::spawn(publish(pool.clone(), writer))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let started = Instant::now();
    while count(&admin, "select count(*) from idempotency.outbox").await > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "events are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut versions: HashMap<String, i64> = HashMap::new();
    let inbox = Inbox::new(SUBSCRIBER).unnamed_statements();
    for event in published.events() {
        let id = event.id().to_string();
        let work = async |_tx| Ok::<_, tower_idempotency::Error>(());
        if inbox.process(&pool, &id, work).await.unwrap() == Processed::First(()) {
            let version = versions.entry(event.aggregate_id().to_owned()).or_default();
            *version += 1;
            assert_eq!(event.payload().as_bytes(), version.to_string().as_bytes());
        }
    }
    assert_eq!(versions.values().sum::<i64>(), EVENTS);
    relays.iter().for_each(tokio::task::JoinHandle::abort);
}
