//! A relay's statements, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::pool;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::postgres::types::PgInterval;
use sqlx::types::Uuid;
use sqlx::{Postgres, Row as _};

use crate::LEASE;
use crate::backlog::Outbox;

/// A connection that runs them.
pub(crate) struct Bare {
    connection: PoolConnection<Postgres>,
    gone: Arc<AtomicU64>,
}

impl Bare {
    pub(crate) async fn connect(outbox: &Outbox) -> Self {
        let pool = pool(outbox.server, outbox.database, 1).await;
        Self { connection: pool.acquire().await.expect("a connection"), gone: Arc::clone(&outbox.gone) }
    }

    pub(crate) async fn round(&mut self) -> u64 {
        let settled = round(&mut self.connection).await.expect("the relay's statements");
        self.gone.fetch_add(settled, Ordering::Relaxed);
        settled
    }
}

/// Claims, reads, settles. How many events?
async fn round(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let claim = Uuid::new_v4();
    let lease = PgInterval::try_from(LEASE).expect("an interval");
    // Not persistent: nor are they in the relay, since plans must follow the tables' sizes.
    let claimed = sqlx::query(include_str!("../../src/sql/outbox_claim.sql"))
        .bind(claim)
        .bind(lease)
        .bind(LANES)
        .bind(RETRIES)
        .bind(EVENTS_A_LOOK)
        .bind(None::<i32>)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    let (mut types, mut names) = (Vec::<String>::new(), Vec::<String>::new());
    for row in &claimed {
        // A row without an aggregate says what else there is.
        if let Some(aggregate) = row.try_get::<Option<String>, _>("aggregatetype")? {
            types.push(aggregate);
            names.push(row.try_get("aggregateid")?);
        }
    }
    if types.is_empty() {
        return Ok(0);
    }
    let events = sqlx::query(include_str!("../../src/sql/outbox_read.sql"))
        .bind(&types)
        .bind(&names)
        .bind(BATCH)
        .bind(BYTES_A_READ)
        .persistent(false)
        .fetch_all(&mut *connection)
        .await?;
    let (mut ids, mut is_done) = (Vec::<Uuid>::with_capacity(events.len()), vec![true; types.len()]);
    for row in &events {
        ids.push(row.try_get("id")?);
        let lane = usize::try_from(row.try_get::<i64, _>("lane")? - 1).expect("the number of a lane");
        is_done[lane] = row.try_get::<i64, _>("found")? < BATCH;
    }
    ids.sort_unstable();
    let lanes = types.len();
    sqlx::query(include_str!("../../src/sql/outbox_settle.sql"))
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

// As the relay has them, by default or by itself.
const LANES: i64 = 64;
const RETRIES: i64 = 16;
const BATCH: i64 = 100;
const BYTES_A_READ: i64 = 16 << 20;
const EVENTS_A_LOOK: i64 = 1_000;
