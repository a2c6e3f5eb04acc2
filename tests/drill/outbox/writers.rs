//! Producers: business rows and their events, in one transaction.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::task::JoinSet;
use tower_idempotency::outbox::{self, Event};

use super::{SUBJECT, Scene};
use crate::random::Random;

/// How many transactions have ended how.
#[derive(Default)]
pub(super) struct Written {
    pub(super) committed: usize,
    rolled_back: usize,
    failed: usize,
}

pub(super) fn start(scene: &Scene, random: &mut Random, until: Instant) -> JoinSet<Written> {
    let pool = scene.pool(u32::try_from(WRITERS).unwrap());
    (0..WRITERS).map(|_| write(pool.clone(), random.fork(), until)).collect()
}

pub(super) fn summary(written: &[Written]) -> String {
    let sum = |count: fn(&Written) -> usize| written.iter().map(count).sum::<usize>();
    let (committed, rolled_back) = (sum(|writer| writer.committed), sum(|writer| writer.rolled_back));
    let failed = sum(|writer| writer.failed);
    format!("{committed} transactions committed, {rolled_back} rolled back, {failed} failed")
}

async fn write(pool: PgPool, mut random: Random, until: Instant) -> Written {
    let mut written = Written::default();
    while Instant::now() < until {
        match transaction(&pool, &mut random).await {
            Ok(true) => written.committed += 1,
            Ok(false) => written.rolled_back += 1,
            // Committed or not: the business rows will tell.
            Err(_) => written.failed += 1,
        }
        tokio::time::sleep(Duration::from_millis(random.below(12))).await;
    }
    written
}

/// Counts up one to three aggregates, or one of them twice, and publishes the numbers. Some take long
/// to commit, some do not.
async fn transaction(pool: &PgPool, random: &mut Random) -> Result<bool, Box<dyn std::error::Error>> {
    let mut aggregates: Vec<u64> = (0..=random.below(3)).map(|_| random.below(AGGREGATES)).collect();
    aggregates.sort_unstable();
    let mut tx = pool.begin().await?;
    for aggregate in aggregates {
        let aggregate = aggregate.to_string();
        // The row's lock puts the transactions of one aggregate in an order.
        let count = "insert into aggregate (id, version) values ($1, 1)
             on conflict (id) do update set version = aggregate.version + 1 returning version";
        let version: i64 = sqlx::query_scalar(count).bind(&aggregate).fetch_one(&mut *tx).await?;
        let event = Event::new(SUBJECT, &aggregate, "thing.changed").json(&version)?;
        outbox::publish(&mut tx, &event).await?;
        sqlx::query("insert into placed (event, aggregate, version) values ($1, $2, $3)")
            .bind(event.id())
            .bind(&aggregate)
            .bind(version)
            .execute(&mut *tx)
            .await?;
    }
    if random.percent(10) {
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
    }
    let commits = !random.percent(10);
    if commits {
        tx.commit().await?
    } else {
        tx.rollback().await?
    }
    Ok(commits)
}

const WRITERS: usize = 6;
const AGGREGATES: u64 = 20;
