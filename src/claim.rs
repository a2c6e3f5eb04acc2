//! One claim: won, settled, or in flight.

use std::time::Duration;

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use crate::connection::{Connection, Database};
use crate::error::{is_conflict, timed_out};
use crate::fingerprint::Digest;
use crate::record::Resource;
use crate::scope::{Scope, ScopeHash};

/// What a request asks the database for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) scope: Scope,
    pub(crate) hash: ScopeHash,
    pub(crate) fingerprint: Digest,
    pub(crate) claim_id: Uuid,
    pub(crate) retention: PgInterval,
    pub(crate) tombstone: Option<PgInterval>,
}

impl Request {
    pub(crate) fn new(scope: Scope, fingerprint: Digest, retention: PgInterval) -> Self {
        let hash = scope.hash();
        Self { scope, hash, fingerprint, claim_id: Uuid::new_v4(), retention, tombstone: None }
    }
}

/// The right to execute, or why there is none.
pub(crate) enum Claim {
    /// Execute, in the open transaction of this connection.
    Won(Connection),
    /// There is a record. The transaction has been rolled back.
    Settled(Record),
    /// Somebody else is executing. The transaction has been rolled back.
    InFlight,
}

/// What the table knows of a key.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) claim_id: Uuid,
    pub(crate) fingerprint: Bytes,
    pub(crate) verdict: Verdict,
    /// Until it expires.
    pub(crate) left: Duration,
    pub(crate) status: Option<i16>,
    pub(crate) headers: Option<Bytes>,
    pub(crate) body: Option<Bytes>,
    pub(crate) resource: Option<Resource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Completed,
    Failed,
    /// Expired, and still refused.
    Tombstone,
    /// A claim whose owner has gone, and which only the same request may take over.
    Lapsed,
    /// A state that this code does not write: a handler ended the transaction itself, or a newer
    /// version wrote the row.
    Broken,
}

impl Verdict {
    /// Only time changes it.
    const fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Tombstone)
    }
}

/// Claims the key, in a transaction that this begins on the connection.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(crate) async fn claim(
    database: &Database,
    connection: Connection,
    request: &Request,
) -> Result<Claim, sqlx::Error> {
    let claim = tokio::time::timeout(CLAIM_TIMEOUT, claim_unbounded(database, connection, request));
    claim.await.unwrap_or_else(|_| Err(timed_out("waiting for the claim")))
}

/// Reads a key that is probably settled, without a transaction: one round trip in place of four.
/// Anything but a settled record is for a claim to find.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(crate) async fn read_settled(
    database: &Database,
    connection: &mut Connection,
    request: &Request,
) -> Result<Option<Record>, sqlx::Error> {
    let read = tokio::time::timeout(CLAIM_TIMEOUT, read(database, connection, request));
    match read.await.unwrap_or_else(|_| Err(timed_out("waiting for the record")))? {
        Some(Found::Record(record)) if record.verdict.is_settled() => Ok(Some(record)),
        _ => Ok(None),
    }
}

async fn claim_unbounded(
    database: &Database,
    mut connection: Connection,
    request: &Request,
) -> Result<Claim, sqlx::Error> {
    let mut conflicts = 0;
    let claim = loop {
        connection.begin(database).await?;
        match attempt(database, &mut connection, request).await {
            Ok(claim) => break claim,
            // Stricter isolation: another's record was committed since our snapshot. A new one
            // shows it.
            Err(error) if is_conflict(&error) && conflicts < CONFLICTS => conflicts += 1,
            Err(error) => return Err(error),
        }
        connection = match connection.rollback().await {
            Some(connection) => connection,
            None => return Err(timed_out("waiting for the rollback of a claim")),
        };
    };
    Ok(match claim {
        Attempt::Won => Claim::Won(connection),
        Attempt::Settled(record) => {
            connection.rollback().await;
            Claim::Settled(record)
        }
        Attempt::InFlight => {
            connection.rollback().await;
            Claim::InFlight
        }
    })
}

enum Attempt {
    Won,
    Settled(Record),
    InFlight,
}

async fn attempt(
    database: &Database,
    connection: &mut Connection,
    request: &Request,
) -> Result<Attempt, sqlx::Error> {
    // Twice: between two statements a row can vanish, or be taken over.
    for _ in 0..2 {
        if take(database, connection, request, include_str!("sql/claim.sql")).await? {
            return Ok(Attempt::Won);
        }
        let Some(found) = read(database, connection, request).await? else { continue };
        match found {
            Found::InFlight => return Ok(Attempt::InFlight),
            Found::Forgotten => {
                if take(database, connection, request, include_str!("sql/reclaim.sql")).await? {
                    return Ok(Attempt::Won);
                }
            }
            Found::Record(record) if record.verdict == Verdict::Lapsed => {
                if !request.fingerprint.matches(&record.fingerprint) {
                    return Ok(Attempt::Settled(record));
                }
                if take(database, connection, request, include_str!("sql/reclaim.sql")).await? {
                    return Ok(Attempt::Won);
                }
            }
            Found::Record(record) => return Ok(Attempt::Settled(record)),
        }
    }
    Ok(Attempt::InFlight)
}

async fn take(
    database: &Database,
    connection: &mut Connection,
    request: &Request,
    statement: &'static str,
) -> Result<bool, sqlx::Error> {
    let taken = sqlx::query(statement)
        .persistent(database.named_statements)
        .bind(&request.scope.tenant)
        .bind(&request.scope.operation)
        .bind(request.scope.key.as_str())
        .bind(request.claim_id)
        .bind(&request.fingerprint.as_bytes()[..])
        .bind(request.hash.lock())
        .bind(request.retention)
        .execute(connection.start())
        .await;
    Ok(connection.done(taken)?.rows_affected() == 1)
}

enum Found {
    InFlight,
    Forgotten,
    Record(Record),
}

async fn read(
    database: &Database,
    connection: &mut Connection,
    request: &Request,
) -> Result<Option<Found>, sqlx::Error> {
    let row = sqlx::query(include_str!("sql/read.sql"))
        .persistent(database.named_statements)
        .bind(&request.scope.tenant)
        .bind(&request.scope.operation)
        .bind(request.scope.key.as_str())
        .fetch_optional(connection.start())
        .await;
    let Some(row) = connection.done(row)? else { return Ok(None) };
    let verdict = match row.try_get::<&str, _>("verdict")? {
        "in flight" => return Ok(Some(Found::InFlight)),
        "forgotten" => return Ok(Some(Found::Forgotten)),
        "completed" => Verdict::Completed,
        "failed" => Verdict::Failed,
        "tombstone" => Verdict::Tombstone,
        "lapsed" => Verdict::Lapsed,
        _ => Verdict::Broken,
    };
    let left: f64 = row.try_get("seconds_left")?;
    let resource = match (row.try_get("resource_type")?, row.try_get("resource_id")?) {
        (Some(kind), Some(id)) => Some(Resource::stored(kind, id)),
        _ => None,
    };
    Ok(Some(Found::Record(Record {
        claim_id: row.try_get("claim_id")?,
        fingerprint: row.try_get::<Vec<u8>, _>("fingerprint")?.into(),
        verdict,
        left: Duration::try_from_secs_f64(left).unwrap_or_default(),
        status: row.try_get("status")?,
        headers: row.try_get::<Option<Vec<u8>>, _>("headers")?.map(Bytes::from),
        body: row.try_get::<Option<Vec<u8>>, _>("body")?.map(Bytes::from),
        resource,
    })))
}

/// Each shows one more commit of the same key; two in a row are rare, ten are a fault.
const CONFLICTS: u32 = 10;

/// A claim takes a few round trips. One that takes longer than this is on a network that swallows
/// packets, or waits for a lock that nothing of ours holds.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
