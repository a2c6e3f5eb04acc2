//! The relay's statements. Each is a transaction of its own: none is open while something is
//! published.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{Row as _, query};
use tokio::time::Instant;
use uuid::Uuid;

use super::event::{Event, Payload};
use crate::connection::{Connection, Database};
use crate::error::timed_out;
use crate::retention::interval;

/// An aggregate whose events this process may publish, until the lease ends.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) claim: Uuid,
    /// By our clock, from before the claim was asked for: never later than the database's.
    pub(crate) until: Instant,
    pub(crate) failed: Option<Failed>,
}

/// A lane, and the claim that holds it.
pub(crate) type Name = (String, String, Uuid);

impl Lane {
    pub(crate) fn name(&self) -> Name {
        (self.aggregate_type.clone(), self.aggregate_id.clone(), self.claim)
    }
}

/// What failed last in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) event: Uuid,
    pub(crate) attempts: u32,
    pub(crate) failures: u32,
}

/// What a claim has brought.
pub(crate) struct Claimed {
    pub(crate) lanes: Vec<Lane>,
    /// There is a relay to [succeed](super::session::succeed).
    pub(crate) is_one_gone: bool,
    /// There are events that nobody has looked at: they were too many for one look.
    pub(crate) is_cut_off: bool,
}

/// Takes lanes: `lanes` at most, and `retries` of them that have failed before.
pub(crate) async fn claim(
    database: &Database,
    relay: Option<i32>,
    lease: Duration,
    lanes: usize,
    retries: usize,
) -> Result<Claimed, sqlx::Error> {
    let claim = Uuid::new_v4();
    let until = Instant::now() + lease;
    let statement = query(include_str!("../sql/outbox_claim.sql"))
        .bind(claim)
        .bind(interval(lease))
        .bind(count(lanes))
        .bind(count(retries))
        .bind(EVENTS_A_LOOK)
        .bind(relay);
    let rows = exchange(database, "claiming events", statement).await?;
    let mut claimed =
        Claimed { lanes: Vec::with_capacity(rows.len()), is_one_gone: false, is_cut_off: false };
    for row in &rows {
        let aggregate_id: String = row.try_get("aggregateid")?;
        let Some(aggregate_type) = row.try_get("aggregatetype")? else {
            match aggregate_id.as_str() {
                "gone" => claimed.is_one_gone = true,
                _ => claimed.is_cut_off = true,
            }
            continue;
        };
        let number = |name| row.try_get::<i32, _>(name).map(|count| u32::try_from(count).unwrap_or_default());
        let failed = match row.try_get("head")? {
            Some(event) => {
                Some(Failed { event, attempts: number("attempts")?, failures: number("failures")? })
            }
            None => None,
        };
        claimed.lanes.push(Lane { aggregate_type, aggregate_id, claim, until, failed });
    }
    Ok(claimed)
}

/// The first events of a lane, and whether there were no more.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    pub(crate) is_all: bool,
}

/// The first events of each lane, in the lanes' order.
pub(crate) async fn read(
    database: &Database,
    lanes: &[Lane],
    batch: usize,
) -> Result<Vec<Batch>, sqlx::Error> {
    let (types, ids) = names(lanes);
    let statement = query(include_str!("../sql/outbox_read.sql"))
        .bind(&types)
        .bind(&ids)
        .bind(count(batch))
        .bind(BYTES_A_READ);
    let mut batches: Vec<Batch> = lanes.iter().map(|_| Batch { events: Vec::new(), is_all: true }).collect();
    for row in exchange(database, "reading events", statement).await? {
        let lane: i64 = row.try_get("lane")?;
        let batch_of = usize::try_from(lane - 1).ok().and_then(|lane| batches.get_mut(lane));
        if let Some(batch_of) = batch_of {
            batch_of.events.push(event(&row)?);
            let found: i64 = row.try_get("found")?;
            batch_of.is_all = found < count(batch) && found == count(batch_of.events.len());
        }
    }
    Ok(batches)
}

/// An event, of this table or that of dead letters.
pub(crate) fn event(row: &PgRow) -> Result<Event, sqlx::Error> {
    let payload = match row.try_get::<Option<Vec<u8>>, _>("payload")?.map(Bytes::from) {
        None => Payload::Empty,
        Some(bytes) if row.try_get("is_bytes")? => Payload::Bytes(bytes),
        Some(text) => Payload::Json(text),
    };
    let headers: BTreeMap<String, serde_json::Value> = serde_json::from_str(row.try_get("headers")?)
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    // Others may have written them.
    let headers = headers.into_iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    Ok(Event {
        id: row.try_get("id")?,
        aggregate_type: row.try_get("aggregatetype")?,
        aggregate_id: row.try_get("aggregateid")?,
        event_type: row.try_get("type")?,
        payload,
        headers: headers.collect(),
    })
}

/// Keeps lanes longer; the result are those that are still ours.
pub(crate) async fn renew(
    database: &Database,
    relay: Option<i32>,
    lanes: &[Lane],
    lease: Duration,
) -> Result<Vec<Name>, sqlx::Error> {
    let (types, ids) = names(lanes);
    let claims: Vec<Uuid> = lanes.iter().map(|lane| lane.claim).collect();
    let statement = query(include_str!("../sql/outbox_renew.sql"))
        .bind(&types)
        .bind(&ids)
        .bind(&claims)
        .bind(interval(lease))
        .bind(relay);
    let rows = exchange(database, "renewing leases", statement).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
}

/// Finds events that no lane leads to.
pub(crate) async fn reconcile(database: &Database) -> Result<(), sqlx::Error> {
    let statement = query(include_str!("../sql/outbox_reconcile.sql"));
    exchange(database, "looking for events without a lane", statement).await.map(drop)
}

/// One statement, in bounded time. A connection that is dropped in the middle is closed.
///
/// None of the relay's statements keeps its name: a plan that was made while the tables were empty
/// reads all of one that has filled up since.
pub(super) async fn exchange(
    database: &Database,
    doing: &'static str,
    statement: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let exchange = async {
        let mut connection = Connection::acquire(database, None).await?;
        // Through an old transaction-pooling proxy only a transaction keeps a statement on one backend.
        if !database.named_statements {
            connection.begin(database).await?;
        }
        let rows = statement.persistent(false).fetch_all(connection.start()).await;
        let rows = connection.done(rows)?;
        if !database.named_statements {
            connection.commit().await?;
        }
        Ok(rows)
    };
    tokio::time::timeout(STATEMENT_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(timed_out(doing)))
}

pub(super) fn names<'l>(lanes: impl IntoIterator<Item = &'l Lane>) -> (Vec<&'l str>, Vec<&'l str>) {
    lanes.into_iter().map(|lane| (lane.aggregate_type.as_str(), lane.aggregate_id.as_str())).unzip()
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What is new is looked at in portions of about this many events, so that a backlog which was
/// written while no relay ran does not make one long statement.
const EVENTS_A_LOOK: i64 = 1_000;

/// What one read may take into memory, beyond the first event of each lane.
const BYTES_A_READ: i64 = 16 << 20;

/// Milliseconds, where the database is well.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
