//! The settlement of a refusal: undo the effects, keep the response.

use axum::body::Body;
use axum::response::Response;

use super::{ANSWER_TIMEOUT, Committed, ResponseRules, Settled, commit, pointer, resource_of};
use crate::buffer::{Buffered, buffer};
use crate::claim::{self, Claim, claim};
use crate::connection::{Connection, Database};
use crate::error::{is_conflict, refusal, sqlstate, timed_out};
use crate::record::Stored;
use crate::recover::{Recovered, recover};
use crate::rejection::RejectionKind;
use crate::telemetry::Outcome;

/// Undoes the effects and keeps the response.
pub(crate) async fn fail(
    database: &Database,
    rules: &ResponseRules,
    request: &claim::Request,
    connection: Connection,
    response: Response,
) -> Settled {
    let (parts, body) = response.into_parts();
    let resource = match resource_of(&parts) {
        Ok(resource) => resource,
        Err(kind) => {
            connection.rollback().await;
            return Settled::Refused(kind);
        }
    };
    let bytes = match buffer(&parts.headers, body, rules.limit, rules.time).await {
        Buffered::Whole(bytes) => bytes,
        // Nothing has happened that a second execution could double: better than a refusal that
        // nobody can read again.
        Buffered::Unstored(body) => {
            connection.rollback().await;
            return Settled::Answer(Response::from_parts(parts, body), Outcome::Released);
        }
        Buffered::Broken(error) => {
            tracing::error!(%error, "the response's body failed before it was recorded");
            connection.rollback().await;
            return Settled::Refused(RejectionKind::ResponseBroken);
        }
    };
    let stored = Stored::new(parts.status, &parts.headers, &rules.headers, Some(bytes.clone()), resource);
    if stored.body.is_none() && stored.resource.is_none() {
        // More headers than can be kept: the same.
        connection.rollback().await;
        return Settled::Answer(Response::from_parts(parts, Body::from(bytes)), Outcome::Released);
    }
    let failed = Settled::Answer(Response::from_parts(parts, Body::from(bytes)), Outcome::Failed);
    let connection = match connection.rollback().await {
        Some(connection) => Ok(connection),
        None => Connection::acquire(database, None).await,
    };
    match keep(database, request, connection, &stored).await {
        Kept::Yes => failed,
        Kept::Other(settled) => settled,
    }
}

enum Kept {
    Yes,
    Other(Settled),
}

async fn keep(
    database: &Database,
    request: &claim::Request,
    connection: Result<Connection, sqlx::Error>,
    stored: &Stored,
) -> Kept {
    let unavailable = |error: &sqlx::Error| {
        tracing::error!(error = error as &dyn std::error::Error, "a refusal could not be recorded");
        Kept::Other(Settled::Refused(refusal(error)))
    };
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(error) => return unavailable(&error),
    };
    let inserted = tokio::time::timeout(ANSWER_TIMEOUT, insert(database, request, &mut connection, stored));
    match inserted.await.unwrap_or_else(|_| Err(timed_out("waiting for the refusal to be written"))) {
        Ok(true) => return Kept::Yes,
        Ok(false) => {}
        // The database's default isolation is a strict one: the same, said differently.
        Err(error) if is_conflict(&error) => {}
        Err(error) if sqlstate(&error).is_some() && !connection.is_in_doubt() => return unavailable(&error),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "recording a refusal went unanswered");
            let place = connection.close();
            let recovered = recover(database, request).await;
            drop(place);
            return match recovered {
                Recovered::Committed => Kept::Yes,
                Recovered::NotCommitted => Kept::Other(Settled::Refused(RejectionKind::DatabaseUnavailable)),
                Recovered::Duplicate(record) => Kept::Other(Settled::Duplicate(record)),
                Recovered::Unknown => Kept::Other(Settled::Refused(RejectionKind::OutcomeUnknown)),
            };
        }
    }
    // Another attempt has claimed the key since the rollback. Its answer is this one's, too; else
    // one key would get two answers.
    if connection.depth() > 0 {
        connection = match connection.rollback().await {
            Some(connection) => connection,
            None => return Kept::Other(Settled::Refused(RejectionKind::DatabaseUnavailable)),
        };
    }
    match claim(database, connection, request).await {
        Ok(Claim::Settled(record)) => Kept::Other(Settled::Duplicate(record)),
        Ok(Claim::InFlight) => Kept::Other(Settled::Refused(RejectionKind::InFlight)),
        Ok(Claim::Won(connection)) => match commit(database, request, connection, "failed", stored).await {
            Committed::Yes => Kept::Yes,
            Committed::Other(Settled::Rerun(_)) => {
                Kept::Other(Settled::Refused(RejectionKind::DatabaseUnavailable))
            }
            Committed::Other(settled) => Kept::Other(settled),
        },
        Err(error) => unavailable(&error),
    }
}

async fn insert(
    database: &Database,
    request: &claim::Request,
    connection: &mut Connection,
    stored: &Stored,
) -> Result<bool, sqlx::Error> {
    let (kind, id) = pointer(stored);
    // Through an old transaction-pooling proxy only a transaction keeps a statement on one backend.
    if !database.named_statements {
        connection.begin(database).await?;
    }
    let row = sqlx::query(include_str!("../sql/failed.sql"))
        .persistent(database.named_statements)
        .bind(&request.scope.tenant)
        .bind(&request.scope.operation)
        .bind(request.scope.key.as_str())
        .bind(request.claim_id)
        .bind(&request.fingerprint.as_bytes()[..])
        .bind(request.hash.lock())
        .bind(stored.status)
        .bind(&stored.headers)
        .bind(stored.body.as_deref())
        .bind(kind)
        .bind(id)
        .bind(request.retention)
        .fetch_optional(connection.start())
        .await;
    let kept = connection.done(row)?.is_some();
    if !database.named_statements {
        connection.commit().await?;
    }
    Ok(kept)
}
