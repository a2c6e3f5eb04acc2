//! Relays with their sessions, and what makes these hard to have.

use std::panic::Location;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use tokio::task::JoinHandle;
use tower_idempotency::outbox::{MemoryPublisher, Relay};

use super::eventually;
use super::outbox::{lanes, number, waiting};

/// No test waits for its end.
pub(crate) const LEASE: Duration = Duration::from_secs(3_600);

/// A relay that runs on a task, with its session.
pub(crate) async fn running(pool: &PgPool, relay: Relay) -> JoinHandle<()> {
    let before = registered(pool).await;
    let running = tokio::spawn(async move { relay.run(std::future::pending()).await });
    is_so(async || registered(pool).await == before + 1).await;
    running
}

pub(crate) async fn registered(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from idempotency.outbox_relay").fetch_one(pool).await.unwrap()
}

/// The sessions of relays: how many, or how many were terminated.
pub(crate) async fn sessions(pool: &PgPool, terminate: bool) -> i64 {
    let count =
        "select count(case when $1 then pg_terminate_backend(pid) end) + count(*) filter (where not $1)
         from pg_locks where locktype = 'advisory' and objsubid = 2
         and database = (select oid from pg_database where datname = current_database())";
    sqlx::query_scalar(count).bind(terminate).fetch_one(pool).await.unwrap()
}

/// Terminates the one session there is, once those that were terminated before are gone.
pub(crate) async fn lose_session(pool: &PgPool) {
    is_so(async || sessions(pool, false).await == 1).await;
    assert_eq!(sessions(pool, true).await, 1);
}

/// Whoever makes a session waits until this is over.
pub(crate) async fn no_new_session(pool: &PgPool) -> Transaction<'static, Postgres> {
    held(pool, "insert on idempotency.outbox_relay").await
}

/// Whoever does this to a table waits until this is over.
pub(crate) async fn held(pool: &PgPool, what: &str) -> Transaction<'static, Postgres> {
    let wait = format!(
        "create function wait() returns trigger language plpgsql
           as $$ begin perform pg_advisory_xact_lock(42); return new; end $$;
         create trigger wait before {what} for each row execute function wait()"
    );
    sqlx::raw_sql(AssertSqlSafe(wait)).execute(pool).await.unwrap();
    let mut hold = pool.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(42)").execute(&mut *hold).await.unwrap();
    hold
}

/// How many wait for that.
pub(crate) async fn kept_waiting(pool: &PgPool) -> i64 {
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and objid = 42 and not granted
         and database = (select oid from pg_database where datname = current_database())";
    sqlx::query_scalar(waiting).fetch_one(pool).await.unwrap()
}

/// No session is to be had.
pub(crate) async fn refuse_sessions(pool: &PgPool) {
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
         create trigger refuse before insert on idempotency.outbox_relay execute function refuse()",
    )
    .execute(pool)
    .await
    .unwrap();
}

#[track_caller]
pub(crate) fn is_so(so: impl AsyncFn() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move { eventually(caller, async || if so().await { Ok(()) } else { Err("not so".into()) }).await }
}

pub(crate) async fn all_is_delivered(pool: &PgPool) -> bool {
    (waiting(pool).await, lanes(pool).await) == (0, 0)
}

pub(crate) fn numbers(published: &MemoryPublisher) -> Vec<i64> {
    published.events().iter().map(number).collect()
}
