//! A database, a service over real HTTP, and a client, for each test.

mod client;
mod counted;
mod deaf;
mod faults;
mod gate;
mod log;
mod outer;
mod pairs;
mod logs;
pub(crate) mod nats;
pub(crate) mod rabbitmq;
mod raw;
mod required;
pub(crate) mod through;
mod turnstile;
mod pool;
mod proxy;
pub(crate) mod senders;
pub(crate) mod outbox;
pub(crate) mod sessions;
mod service;
#[path = "../../shared/signal.rs"]
mod signal;
mod socket;
pub(crate) mod wire;

pub(crate) use client::{Answer, Call, Client};
pub(crate) use counted::counted_pool;
pub(crate) use faults::{FAULTS, Faults, SECRETS};
pub(crate) use gate::{Gate, paid, payment};
pub(crate) use log::{Fields, Log};
pub(crate) use logs::{LogText, Logs};
pub(crate) use outer::Outer;
pub(crate) use pairs::{Pairs, Sent};
pub(crate) use pool::is_sound;
pub(crate) use proxy::{Fate, Message, Proxy, first_read};
pub(crate) use raw::{RawAnswer, post_raw};
pub(crate) use required::absent;
pub(crate) use service::{Service, serve, serve_behind};
pub(crate) use signal::signal;
pub(crate) use socket::Raw;
pub(crate) use through::{layer as layer_of, operation as operation_of};
pub(crate) use turnstile::{OnDrop, Runs, Turnstile, begin_dropped_midway, poll_once};

use axum::http::request::Parts;
use devpg::TestDb;
use sqlx::PgPool;
use tower_idempotency::{IdempotencyLayer, Tenant};

/// A migrated database of its own, with a table for effects.
pub(crate) async fn database() -> TestDb {
    through::reached(
        devpg::database(async |pool| {
            tower_idempotency::migrate(pool).await.unwrap();
            sqlx::raw_sql(
                "create table effect (
               id bigint generated always as identity primary key,
               name text not null,
               constraint effect_name_short check (length(name) < 100)
             );
             create table once (name text primary key);
             create table parent (id bigint primary key);
             create table child (
               parent bigint constraint child_parent references parent deferrable initially deferred
             )",
            )
            .execute(pool)
            .await
            .unwrap();
        })
        .await,
    )
}

/// A layer whose tenant is the header `x-tenant`, or `default` without one.
pub(crate) fn layer(pool: &PgPool) -> IdempotencyLayer {
    layer_of(pool, tenant()).operation("test")
}

pub(crate) fn tenant() -> Tenant {
    Tenant::from_fn(|parts: &Parts| {
        let tenant = parts.headers.get("x-tenant").map_or("default", |value| value.to_str().unwrap());
        tenant.to_owned()
    })
}

/// Writes one effect through any connection; without a name, for PgBouncer.
pub(crate) async fn effect(connection: &mut sqlx::PgConnection, name: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("insert into effect (name) values ($1) returning id")
        .bind(name)
        .persistent(false)
        .fetch_one(connection)
        .await
}

/// How many effects of this name are committed.
pub(crate) async fn effects(pool: &PgPool, name: &str) -> i64 {
    sqlx::query_scalar("select count(*) from effect where name = $1")
        .bind(name)
        .fetch_one(pool)
        .await
        .unwrap()
}

/// How many records there are.
pub(crate) async fn records(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from idempotency.record").fetch_one(pool).await.unwrap()
}

/// The states of all records.
pub(crate) async fn states(pool: &PgPool) -> Vec<String> {
    sqlx::query_scalar("select state from idempotency.record order by created_at")
        .fetch_all(pool)
        .await
        .unwrap()
}

/// Asserts that no connection of this database is inside a transaction, waiting for those that are
/// just being given back.
#[track_caller]
pub(crate) fn no_transaction_is_left(pool: &PgPool) -> impl Future<Output = ()> {
    let at = std::panic::Location::caller();
    let pool = pool.clone();
    async move {
        eventually(at, async || {
            let open: Vec<(Option<String>, Option<String>)> = sqlx::query_as(
                "select state, query from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null",
            )
            .fetch_all(&pool)
            .await
            .unwrap();
            if open.is_empty() { Ok(()) } else { Err(format!("open transactions: {open:?}")) }
        })
        .await;
    }
}

/// Asks again until the condition holds, for a minute: brokers take their time to come back.
pub(crate) async fn eventually(
    at: &std::panic::Location<'_>,
    mut condition: impl AsyncFnMut() -> Result<(), String>,
) {
    let started = std::time::Instant::now();
    loop {
        match condition().await {
            Ok(()) => return,
            Err(why) => assert!(started.elapsed().as_secs() < 60, "{at}: {why}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
