//! Carries a settlement out: commit effects and response together, or undo them.

mod failed;

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::response::Parts;
use sqlx::postgres::types::PgInterval;

use crate::buffer::{Buffered, buffer};
use crate::claim::{self, Record};
use crate::connection::{Connection, Database};
use crate::error::{commit_was_answered, commit_was_refused, is_conflict, refusal, sqlstate, timed_out};
use crate::execute::after_commit;
use crate::record::{HeaderRules, Resource, Stored};
use crate::recover::{Recovered, recover};
use crate::rejection::RejectionKind;
use crate::telemetry::Outcome;
use crate::tx::Hooks;

pub(crate) use failed::fail;

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
    let resource = match resource_of(&parts) {
        Ok(resource) => resource,
        Err(kind) => {
            connection.rollback().await;
            return Settled::Refused(kind);
        }
    };
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

/// The pointer that is stored in place of the body, if the handler gave one.
fn resource_of(parts: &Parts) -> Result<Option<Resource>, RejectionKind> {
    let resource = parts.extensions.get::<Resource>().cloned();
    if resource.as_ref().is_some_and(|resource| !resource.fits()) {
        tracing::error!("a resource's type and id have 1 to 255 bytes each");
        return Err(RejectionKind::ResponseUnstorable);
    }
    Ok(resource)
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
                // Through a transaction-pooling proxy: a transaction would have kept its backend.
                Some("26000") if !database.named_statements => RejectionKind::TransactionEnded,
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
    let answered = commit_was_answered(&error);
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

/// Longer than the record or a healthy COMMIT takes, unless a statement that nobody waits for any
/// more is still running. After an unanswered COMMIT the outcome is learned from the table instead.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
