//! Relays that are killed at random, beside writers that commit late and an aggregate that fails.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::PgPool;
use tower_idempotency::outbox::{self, Backoff, DeadLetters, Event, PublishError, Relay};
use uuid::Uuid;

use crate::support::outbox::{drain, event, lanes, number, waiting};
use crate::support::{database, eventually, through};

const AGGREGATES: u64 = 12;
const POISON: &str = "0";
const EVENTS_A_WRITER: u64 = 250;

/// A number that looks random and is the same each time.
fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Counts up its aggregate, publishes the number, and dawdles before it commits.
async fn write(pool: PgPool, writer: u64) -> Vec<Uuid> {
    let mut committed = Vec::new();
    for n in 0..EVENTS_A_WRITER {
        let random = random(writer * 1_000_000 + n);
        let aggregate = (random % AGGREGATES).to_string();
        let mut tx = pool.begin().await.unwrap();
        let version: i64 =
            sqlx::query_scalar("update aggregate set version = version + 1 where id = $1 returning version")
                .bind(&aggregate)
                .fetch_one(&mut *tx)
                .await
                .unwrap();
        let event = event(&aggregate, version);
        outbox::publish(&mut tx, &event).await.unwrap();
        if random.is_multiple_of(7) {
            tokio::time::sleep(Duration::from_millis(random % 40)).await;
        }
        if random.is_multiple_of(11) {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            committed.push(event.id());
        }
    }
    committed
}

/// What has been delivered, in the order of arrival.
#[derive(Clone, Default)]
struct Broker {
    log: Arc<Mutex<Vec<Event>>>,
    attempts: Arc<Mutex<u64>>,
}

impl Broker {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            *attempts += 1;
            *attempts
        };
        if event.aggregate_id() == POISON && attempt % 3 != 0 {
            return Err(PublishError::failed("poison"));
        }
        self.log.lock().unwrap().push(event);
        // Delivered. The acknowledgement takes its time, sometimes longer than the lease, and may
        // never be heard.
        match random(attempt) % 200 {
            0 => tokio::time::sleep(Duration::from_millis(300)).await,
            n if n < 20 => tokio::time::sleep(Duration::from_millis(n)).await,
            _ => {}
        }
        Ok(())
    }
}

/// Runs a relay, kills it after a while, and runs another, until it is told to stop.
async fn relays(pool: PgPool, broker: Broker, stop: Arc<AtomicBool>, number: u64) {
    let mut lives = 0;
    while !stop.load(Ordering::SeqCst) {
        lives += 1;
        let broker = broker.clone();
        let quick = Duration::from_millis(5);
        let relay = Relay::new(pool.clone(), move |event| {
            let broker = broker.clone();
            async move { broker.publish(event).await }
        })
        .lease(Duration::from_millis(100))
        .concurrency(5)
        .batch(7)
        .backoff(Backoff::new(quick, quick))
        .max_attempts(1_000)
        .poll_interval(Duration::from_millis(20));
        let relay = if through::unnamed(&pool) { relay.unnamed_statements() } else { relay };
        let life = Duration::from_millis(20 + random(number * 1_000 + lives) % 400);
        drop(tokio::time::timeout(life, relay.run(std::future::pending())).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_committed_event_arrives_in_order_and_none_is_left() {
    let db = database().await;
    sqlx::raw_sql("create table aggregate (id text primary key, version bigint not null default 0)")
        .execute(&*db)
        .await
        .unwrap();
    sqlx::query("insert into aggregate select n::text from generate_series(0, $1) n")
        .bind(i64::try_from(AGGREGATES).unwrap() - 1)
        .execute(&*db)
        .await
        .unwrap();
    let (broker, stop) = (Broker::default(), Arc::new(AtomicBool::new(false)));
    let relaying = db.pool(16).await;
    let lives: Vec<_> = (0..4)
        .map(|number| tokio::spawn(relays(relaying.clone(), broker.clone(), Arc::clone(&stop), number)))
        .collect();
    let writers: Vec<_> = (0..4).map(|writer| tokio::spawn(write((*db).clone(), writer))).collect();
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    let drained = eventually(std::panic::Location::caller(), async || {
        let left = waiting(&db).await;
        if left == 0 { Ok(()) } else { Err(format!("{left} events are left")) }
    });
    drained.await;
    stop.store(true, Ordering::SeqCst);
    for life in lives {
        life.await.unwrap();
    }
    // The lanes that the last killed ones have left behind.
    sqlx::query("update idempotency.outbox_lane set ready_at = now()").execute(&*db).await.unwrap();
    drain(&Relay::new((*db).clone(), async |_| Ok(()))).await;
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
    assert_eq!(DeadLetters::new((*db).clone()).list(1).await.unwrap(), []);

    // Behind an inbox: the first arrival of each counts.
    let log = broker.log.lock().unwrap();
    let mut seen = HashSet::new();
    let mut versions: HashMap<String, Vec<i64>> = HashMap::new();
    for event in log.iter().filter(|event| seen.insert(event.id())) {
        versions.entry(event.aggregate_id().to_owned()).or_default().push(number(event));
    }
    assert_eq!(seen, committed);
    assert!(log.len() > seen.len(), "nothing came twice; this was no drill");
    for (aggregate, versions) in versions {
        let expected: Vec<i64> = (1..=i64::try_from(versions.len()).unwrap()).collect();
        assert_eq!(versions, expected, "aggregate {aggregate}");
    }
    println!("{} events, {} deliveries", seen.len(), log.len());
}
