//! Runs the handler, once or again, and settles what it did.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http::Request;
use http::request::Parts;
use tower_service::Service;
use tracing::Span;
use uuid::Uuid;

use crate::buffer::RequestBody;
use crate::claim::{self, Claim, claim};
use crate::connection::Connection;
use crate::detach::Detach;
use crate::error::{claim_failed, commit_was_answered, commit_was_refused, refusal, sqlstate, timed_out};
use crate::idempotency::Idempotency;
use crate::layer::Config;
use crate::rejection::RejectionKind;
use crate::settle::{ANSWER_TIMEOUT, Settled, complete, fail};
use crate::settlement::Settlement;
use crate::telemetry::{self, Outcome, finish};
use crate::tx::{Hooks, Lent, Taken, TxHandle};

/// A request that has won its claim.
pub(crate) struct Job<S> {
    pub(crate) config: Arc<Config>,
    pub(crate) inner: S,
    pub(crate) parts: Parts,
    pub(crate) body: RequestBody,
    pub(crate) request: claim::Request,
    pub(crate) idempotency: Idempotency,
}

/// Runs the handler in the claim's transaction, and settles it by the handler's response.
pub(crate) async fn execute<S>(mut job: Job<S>, mut connection: Connection) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response: IntoResponse, Error: Send, Future: Send> + Clone + Send + 'static,
{
    let config = Arc::clone(&job.config);
    let matched = job.parts.extensions.get::<MatchedPath>().is_some();
    let mut reruns = 0;
    loop {
        let Some(body) = job.body.next() else { return Ok(config.reject(RejectionKind::RerunsExhausted)) };
        let lent = Lent(TxHandle::home(connection, &config.answers));
        lent.0.identify(job.idempotency.clone());
        let mut request = Request::from_parts(job.parts.clone(), body);
        request.extensions_mut().insert(lent.0.clone());
        request.extensions_mut().insert(job.idempotency.clone());

        let run = AssertUnwindSafe(run(&mut job.inner, request)).catch_unwind();
        let response = match tokio::time::timeout(config.execution_timeout, run).await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(error))) => {
                lent.undo().await;
                telemetry::record(Outcome::ServiceError);
                return Err(error);
            }
            Ok(Err(panic)) => {
                lent.undo().await;
                telemetry::record(Outcome::Panicked);
                resume(panic);
            }
            Err(_) => {
                lent.undo().await;
                return Ok(config.reject(RejectionKind::ExecutionTimeout));
            }
        };

        let mut settlement = config.settlement(&response, matched);
        if settlement == Settlement::Fail && job.body.is_broken() {
            // A refusal of half a request is not the answer to the whole one.
            settlement = Settlement::Release;
        }
        let again = match settle(&config, &job.request, &lent, response, settlement).await {
            Settled::Rerun(again) if reruns < config.max_reruns && job.body.is_repeatable() => again,
            settled => {
                if let Settled::Answer(_, Outcome::Completed | Outcome::Failed) = settled {
                    config.settled.mark(job.request.hash);
                }
                return Ok(answer(&config, &job.request, &job.idempotency, settled).await);
            }
        };
        reruns += 1;
        Span::current().record("reruns", reruns);
        pause(reruns).await;
        job.request.claim_id = Uuid::new_v4();
        connection = match claim_again(&config, again, &job.request).await {
            Ok(Claim::Won(connection)) => connection,
            Ok(Claim::Settled(record)) => {
                return Ok(config.answer_from(record, &job.request, &job.idempotency).await);
            }
            Ok(Claim::InFlight) => return Ok(config.reject(RejectionKind::InFlight)),
            Err(kind) => return Ok(config.reject(kind)),
        };
    }
}

async fn run<S>(inner: &mut S, request: Request<Body>) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response: IntoResponse>,
{
    poll_fn(|cx| inner.poll_ready(cx)).await?;
    inner.call(request).await.map(IntoResponse::into_response)
}

fn resume(panic: Box<dyn Any + Send>) -> ! {
    resume_unwind(panic)
}

async fn settle(
    config: &Config,
    request: &claim::Request,
    lent: &Lent,
    response: Response,
    settlement: Settlement,
) -> Settled {
    let (connection, hooks) = match lent.0.take() {
        Taken::Home(connection, hooks) => (connection, hooks),
        // It ends in a rollback when it is dropped, which is what this response wants.
        Taken::Kept if settlement == Settlement::Release => {
            return Settled::Answer(response, Outcome::Released);
        }
        Taken::Kept | Taken::Unbegun => {
            tracing::error!(
                "the handler answered while its `Tx` was still held, by a spawned task or by the response's body; its effects are undone, and the key is free when the `Tx` is dropped"
            );
            return Settled::Refused(RejectionKind::TransactionKept);
        }
    };
    match settlement {
        Settlement::Complete => {
            complete(&config.database, &config.responses, request, connection, hooks, response).await
        }
        Settlement::Fail => fail(&config.database, &config.responses, request, connection, response).await,
        Settlement::Release => {
            connection.rollback().await;
            Settled::Answer(response, Outcome::Released)
        }
        // What was written since then stands alone: another execution would double it.
        Settlement::Rerun if connection.depth() == 0 => {
            tracing::error!(
                "the handler's transaction is over, and it is not run again: a nested `begin()` was dropped before it finished, and what was written after it may stand"
            );
            connection.rollback().await;
            Settled::Refused(RejectionKind::TransactionEnded)
        }
        Settlement::Rerun => Settled::Rerun(connection.rollback().await),
    }
}

async fn answer(
    config: &Config,
    request: &claim::Request,
    idempotency: &Idempotency,
    settled: Settled,
) -> Response {
    match settled {
        Settled::Answer(response, outcome) => finish(response, outcome),
        Settled::Duplicate(record) => config.answer_from(record, request, idempotency).await,
        Settled::Refused(kind) => config.reject(kind),
        Settled::Rerun(_) => config.reject(RejectionKind::RerunsExhausted),
    }
}

/// A random part of a time that doubles: two executions that met do not meet again.
async fn pause(reruns: u32) {
    let longest = FIRST_PAUSE * 2_u32.saturating_pow(reruns.min(7));
    let random = u32::from(Uuid::new_v4().as_bytes()[0]) + 1;
    tokio::time::sleep(longest * random / 256).await;
}

async fn claim_again(
    config: &Config,
    connection: Option<Connection>,
    request: &claim::Request,
) -> Result<Claim, RejectionKind> {
    let claimed = match connection {
        Some(connection) => claim(&config.database, connection, request).await,
        None => {
            let permit = config.capacity.enter().await?;
            match Connection::acquire(&config.database, Some(permit)).await {
                Ok(connection) => claim(&config.database, connection, request).await,
                Err(error) => Err(error),
            }
        }
    };
    claimed.map_err(|error| claim_failed(&error))
}

/// A request without a key, or of a method that the layer does not act on. Its transaction begins
/// when the handler asks for it, and ends by the same rules.
pub(crate) async fn unprotected<S>(
    config: Arc<Config>,
    mut inner: S,
    mut request: Request<Body>,
) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response: IntoResponse, Error: Send, Future: Send> + Clone + Send + 'static,
{
    let matched = request.extensions().get::<MatchedPath>().is_some();
    if request.extensions().get::<TxHandle>().is_some() {
        return run(&mut inner, request).await.map(|response| finish(response, Outcome::Unprotected));
    }
    let lent = Lent(TxHandle::lazy(config.database.clone(), config.capacity.clone(), &config.answers));
    request.extensions_mut().insert(lent.0.clone());
    let response = run(&mut inner, request).await?;
    let keeps = config.settlement(&response, matched) == Settlement::Complete;
    match lent.0.take() {
        Taken::Home(connection, hooks) => {
            let ended = Detach::new(async move {
                if !keeps {
                    connection.rollback().await;
                    return Ok(());
                }
                commit(connection, hooks).await
            });
            match ended.await {
                Ok(()) => Ok(finish(response, Outcome::Unprotected)),
                Err(kind) => Ok(config.reject(kind)),
            }
        }
        Taken::Kept if keeps => {
            tracing::error!("the handler answered while its `Tx` was still held; its effects are undone");
            drop(response);
            Ok(config.reject(RejectionKind::TransactionKept))
        }
        Taken::Kept | Taken::Unbegun => Ok(finish(response, Outcome::Unprotected)),
    }
}

async fn commit(mut connection: Connection, hooks: Hooks) -> Result<(), RejectionKind> {
    if connection.depth() != 1 {
        tracing::error!(
            "the handler left a savepoint open, or dropped a nested `begin()` before it finished"
        );
        connection.rollback().await;
        return Err(RejectionKind::TransactionAborted);
    }
    // COMMIT of an aborted transaction succeeds, and rolls back: ask first.
    let alive = sqlx::raw_sql("select").execute(connection.start());
    let alive = tokio::time::timeout(ANSWER_TIMEOUT, alive).await;
    let alive = alive.unwrap_or_else(|_| Err(timed_out("waiting for the handler's last statement")));
    if let Err(error) = connection.done(alive) {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "the handler's transaction cannot be committed"
        );
        let kind = if sqlstate(&error).as_deref() == Some("25P02") {
            RejectionKind::TransactionAborted
        } else {
            refusal(&error)
        };
        connection.rollback().await;
        return Err(kind);
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, connection.commit()).await {
        Ok(Ok(())) => {
            after_commit(hooks);
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::error!(error = &error as &dyn std::error::Error, "COMMIT failed");
            Err(if commit_was_refused(&error) || commit_was_answered(&error) {
                RejectionKind::CommitRefused
            } else {
                RejectionKind::CommitUnanswered
            })
        }
        Err(_) => Err(RejectionKind::CommitUnanswered),
    }
}

/// Runs what waited for the commit, each on a task of its own: one that panics or hangs keeps no
/// other from running.
pub(crate) fn after_commit(hooks: Hooks) {
    for hook in hooks {
        tokio::spawn(hook);
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
