//! Carries a settlement out: commit effects and response together, or undo them.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use sqlx::postgres::types::PgInterval;

use crate::buffer::{Buffered, buffer};
use crate::claim::{self, Claim, Record, claim};
use crate::connection::{Connection, Database};
use crate::error::{commit_was_refused, is_conflict, refusal, sqlstate, timed_out};
use crate::execute::after_commit;
use crate::record::{HeaderRules, Resource, Stored};
use crate::recover::{Recovered, recover};
use crate::rejection::RejectionKind;
use crate::telemetry::Outcome;
use crate::tx::Hooks;

/// What a settled execution comes to.
pub(crate) enum Settled {
    Answer(Response, Outcome),
    /// Another attempt at the key has been settled, or is at it: answer as its duplicate.
    Duplicate(Record),
    Refused(RejectionKind),
    /// Undone; execute again.
    Rerun(Option<Connection>),
}

/// What may be stored of a response.
#[derive(Clone)]
pub(crate) struct ResponseRules {
    pub(crate) limit: usize,
    pub(crate) time: Duration,
    pub(crate) headers: HeaderRules,
}

/// Commits the effects and the response together.
pub(crate) async fn complete(
    database: &Database,
    rules: &ResponseRules,
    request: &claim::Request,
    connection: Connection,
    hooks: Hooks,
    response: Response,
) -> Settled {
    match connection.depth() {
        1 => {}
        0 => {
            tracing::error!(
                "the handler's transaction is over before it was settled: a nested `begin()` was dropped before it finished. What was written through the transaction is undone"
            );
            connection.rollback().await;
            return Settled::Refused(RejectionKind::TransactionEnded);
        }
        _ => {
            tracing::error!(
                "the handler left a savepoint open: a nested transaction was neither committed nor dropped"
            );
            connection.rollback().await;
            return Settled::Refused(RejectionKind::TransactionAborted);
        }
    }
    let (parts, body) = response.into_parts();
    let resource = parts.extensions.get::<Resource>().cloned();
    if resource.as_ref().is_some_and(|resource| !resource.fits()) {
        tracing::error!("a resource's type and id have 1 to 255 bytes each");
        connection.rollback().await;
        return Settled::Refused(RejectionKind::ResponseUnstorable);
    }
    let buffered = match resource {
        Some(_) => Buffered::Unstored(body),
        None => buffer(&parts.headers, body, rules.limit, rules.time).await,
    };
    let (stored_body, body) = match buffered {
        Buffered::Whole(bytes) => (Some(bytes.clone()), Body::from(bytes)),
        Buffered::Unstored(body) => (None, body),
        Buffered::Broken(error) => {
            tracing::error!(%error, "the response's body failed before it was recorded");
            connection.rollback().await;
            return Settled::Refused(RejectionKind::ResponseBroken);
        }
    };
    let stored = Stored::new(parts.status, &parts.headers, &rules.headers, stored_body, resource);
    match commit(database, request, connection, "completed", &stored).await {
        Committed::Yes => {
            after_commit(hooks);
            Settled::Answer(Response::from_parts(parts, body), Outcome::Completed)
        }
        Committed::Other(settled) => settled,
    }
}

pub(crate) enum Committed {
    Yes,
    Other(Settled),
}

/// Writes the response into the claimed row and commits.
pub(crate) async fn commit(
    database: &Database,
    request: &claim::Request,
    mut connection: Connection,
    state: &'static str,
    stored: &Stored,
) -> Committed {
    let refused = |kind| Committed::Other(Settled::Refused(kind));
    let written =
        tokio::time::timeout(ANSWER_TIMEOUT, write(database, request, &mut connection, state, stored));
    match written.await.unwrap_or_else(|_| Err(timed_out("waiting for the record to be written"))) {
        Ok(1) => {}
        Ok(_) => {
            tracing::error!(
                "the handler ended its transaction itself, with a statement like COMMIT or ROLLBACK; what it did may stand without a record"
            );
            connection.rollback().await;
            return refused(RejectionKind::TransactionEnded);
        }
        Err(error) => {
            let conflict = is_conflict(&error);
            let kind = match sqlstate(&error).as_deref() {
                Some("23514" | "22003" | "54000") => RejectionKind::ResponseUnstorable,
                _ => refusal(&error),
            };
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "recording the response failed, the effects are undone; a handler that answered with success although one of its statements had failed leads here"
            );
            let connection = connection.rollback().await;
            return if conflict { Committed::Other(Settled::Rerun(connection)) } else { refused(kind) };
        }
    }
    let error = match tokio::time::timeout(ANSWER_TIMEOUT, connection.commit()).await {
        Ok(Ok(())) => return Committed::Yes,
        Ok(Err(error)) => error,
        Err(_) => timed_out("waiting for COMMIT"),
    };
    if is_conflict(&error) {
        return Committed::Other(Settled::Rerun(connection.rollback().await));
    }
    if commit_was_refused(&error) {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "COMMIT was refused, the effects are undone"
        );
        connection.rollback().await;
        return refused(RejectionKind::CommitRefused);
    }
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        "COMMIT went unanswered; finding out what became of it"
    );
    let answered = sqlstate(&error).is_some_and(|code| !["08", "57", "58", "XX"].contains(&&code[..2]));
    let place = connection.close();
    let recovered = recover(database, request).await;
    drop(place);
    match recovered {
        Recovered::Committed => Committed::Yes,
        Recovered::NotCommitted if answered => refused(RejectionKind::CommitRefused),
        Recovered::NotCommitted => refused(RejectionKind::DatabaseUnavailable),
        Recovered::Duplicate(record) => Committed::Other(Settled::Duplicate(record)),
        Recovered::Unknown => refused(RejectionKind::OutcomeUnknown),
    }
}

async fn write(
    database: &Database,
    request: &claim::Request,
    connection: &mut Connection,
    state: &'static str,
    stored: &Stored,
) -> Result<u64, sqlx::Error> {
    let (kind, id) = pointer(stored);
    let tombstone = if state == "completed" { request.tombstone } else { None::<PgInterval> };
    let written = sqlx::query(include_str!("sql/settle.sql"))
        .persistent(database.named_statements)
        .bind(&request.scope.tenant)
        .bind(&request.scope.operation)
        .bind(request.scope.key.as_str())
        .bind(request.claim_id)
        .bind(state)
        .bind(stored.status)
        .bind(&stored.headers)
        .bind(stored.body.as_deref())
        .bind(kind)
        .bind(id)
        .bind(request.retention)
        .bind(tombstone)
        .execute(connection.start())
        .await;
    Ok(connection.done(written)?.rows_affected())
}

fn pointer(stored: &Stored) -> (Option<&str>, Option<&str>) {
    (stored.resource.as_ref().map(Resource::kind), stored.resource.as_ref().map(Resource::id))
}

/// Undoes the effects and keeps the response.
pub(crate) async fn fail(
    database: &Database,
    rules: &ResponseRules,
    request: &claim::Request,
    connection: Connection,
    response: Response,
) -> Settled {
    let (parts, body) = response.into_parts();
    let resource = parts.extensions.get::<Resource>().cloned().filter(Resource::fits);
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
    let row = sqlx::query(include_str!("sql/failed.sql"))
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

/// Longer than the record or a healthy COMMIT takes, unless a statement that nobody waits for any
/// more is still running. After an unanswered COMMIT the outcome is learned from the table instead.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
