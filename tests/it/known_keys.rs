//! What a process knows of a key makes its replay cheaper, and never another one.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::PgPool;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{
    Answer, Fate, Proxy, Service, database, effect, effects, eventually, layer, no_transaction_is_left,
    serve, tenant,
};

async fn service(layer: IdempotencyLayer) -> Service {
    let pay = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        (StatusCode::CREATED, [("location", format!("/payments/{id}"))], format!("payment {id}"))
    };
    let refuse = async |_tx: Tx| (StatusCode::PAYMENT_REQUIRED, "no");
    let routes = Router::new().route("/", post(pay)).route("/refused", post(refuse));
    serve(routes.route_layer(layer)).await
}

async fn pay(service: &Service) -> Answer {
    service.post("/").key("k").json("{}").send().await
}

async fn change(pool: &PgPool, statement: &'static str) {
    assert_eq!(sqlx::query(statement).execute(pool).await.unwrap().rows_affected(), 1, "{statement}");
}

async fn is_idle(pool: &PgPool) {
    eventually(Location::caller(), async || {
        if pool.num_idle() == 1 { Ok(()) } else { Err("the connection is in use".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn a_replay_of_a_key_that_was_settled_here_costs_one_round_trip() {
    let db = database().await;
    let trips = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&trips);
    let proxy = Proxy::to(&db, move |message| {
        count.fetch_add(usize::from(message.is_round_trip()), Ordering::SeqCst);
        Fate::Forward
    });
    // Without the pool's own question whether a connection is alive; it asks again when it gets one
    // back.
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1).test_before_acquire(false);
    let pool = proxy.pool_with(options).await;
    let service = service(layer(&pool)).await;
    for path in ["/", "/refused"] {
        let call = || service.post(path).key(path).json("{}");
        let first = call().send().await;
        // The statement is prepared.
        call().send().await.replays(&first);
        is_idle(&pool).await;
        let before = trips.load(Ordering::SeqCst);
        call().send().await.replays(&first);
        is_idle(&pool).await;
        assert_eq!(trips.load(Ordering::SeqCst) - before, 1 + 1, "{path}");
    }
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn a_replay_through_an_old_proxy_stays_inside_of_a_transaction() {
    let db = database().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let proxy = Proxy::to(&db, move |message| {
        count.fetch_add(usize::from(message.contains("begin isolation level")), Ordering::SeqCst);
        Fate::Forward
    });
    let service = service(layer(&proxy.pool(2).await).unnamed_statements()).await;
    let first = pay(&service).await;
    for _ in 0..3 {
        pay(&service).await.replays(&first);
    }
    assert_eq!(begun.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_key_that_is_known_here_is_executed_anew_when_its_row_has_expired_or_gone() {
    let db = database().await;
    let service = service(layer(&db)).await;
    let first = pay(&service).await;
    pay(&service).await.replays(&first);
    change(&db, "update idempotency.record set expires_at = now() - interval '1 second'").await;
    let second = pay(&service).await;
    assert_eq!(second.status, 201);
    assert!(!second.is_replay(), "{second:?}");
    change(&db, "delete from idempotency.record").await;
    let third = pay(&service).await;
    assert!(!third.is_replay(), "{third:?}");
    assert_eq!(effects(&db, "paid").await, 3);
    no_transaction_is_left(&db).await;
}

#[tokio::test]
async fn a_cached_replay_is_the_same_bytes_and_needs_no_database() {
    let db = database().await;
    let pool = db.pool(2).await;
    let layer = IdempotencyLayer::new(pool.clone(), tenant()).operation("test");
    let service = service(layer.replay_cache(1 << 20)).await;
    let first = pay(&service).await;
    pay(&service).await.replays(&first);
    let refused = service.post("/refused").key("r").json("{}").send().await;
    service.post("/refused").key("r").json("{}").send().await.replays(&refused);
    pool.close().await;
    pay(&service).await.replays(&first);
    service.post("/refused").key("r").json("{}").send().await.replays(&refused);
    service.post("/").key("other").json("{}").send().await.is_rejected(503, "database-unavailable");
}

#[tokio::test]
async fn a_cached_record_is_compared_with_the_request_as_any_other() {
    let db = database().await;
    let service = service(layer(&db).replay_cache(1 << 20)).await;
    let first = pay(&service).await;
    pay(&service).await.replays(&first);
    let other = service.post("/").key("k").json(r#"{"amount":2}"#).send().await;
    other.is_rejected(422, "key-reused");
    // Nor does the key of another tenant have its record.
    let theirs = service.post("/").key("k").header("x-tenant", "other").json("{}").send().await;
    assert!(!theirs.is_replay(), "{theirs:?}");
    pay(&service).await.replays(&first);
}

#[tokio::test]
async fn a_cached_record_is_not_replayed_after_it_expires() {
    let db = database().await;
    let service = service(layer(&db).replay_cache(1 << 20)).await;
    let first = pay(&service).await;
    change(&db, "update idempotency.record set expires_at = clock_timestamp() + interval '3 seconds'").await;
    pay(&service).await.replays(&first);
    eventually(Location::caller(), async || {
        let answer = pay(&service).await;
        if answer.is_replay() { Err("the record is still replayed".to_owned()) } else { Ok(()) }
    })
    .await;
    assert_eq!(effects(&db, "paid").await, 2);
}

#[tokio::test]
async fn without_a_cache_each_replay_is_read_from_the_table() {
    let db = database().await;
    let service = service(layer(&db)).await;
    pay(&service).await;
    assert!(pay(&service).await.is_replay());
    change(&db, "update idempotency.record set body = 'from the table'").await;
    assert_eq!(pay(&service).await.text(), "from the table");
}

#[tokio::test]
async fn a_tombstone_is_never_cached() {
    let db = database().await;
    let layer = layer(&db).replay_cache(1 << 20).tombstone(std::time::Duration::from_secs(3600));
    let service = service(layer).await;
    pay(&service).await;
    change(&db, "update idempotency.record set expires_at = now() - interval '1 second'").await;
    for _ in 0..2 {
        pay(&service).await.is_rejected(410, "response-expired");
    }
    change(&db, "update idempotency.record set expires_at = now() - interval '2 hours'").await;
    assert_eq!(pay(&service).await.status, 201);
}
