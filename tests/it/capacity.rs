//! How much at once, and what happens beyond it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row as _};
use tokio::sync::{Notify, Semaphore};
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{
    database, effect, effects, layer, no_transaction_is_left, records, serve, serve_behind, states,
};

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_handlers_that_also_use_the_pool_all_succeed_with_a_pool_of_two() {
    let db = database().await;
    let options = PgPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(3));
    let pool = db.pool_with(options).await;
    let second = pool.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        // With the transaction open, and needed until it ends.
        let count = sqlx::raw_sql("select count(*) from effect").fetch_one(&second).await;
        count.map(|count| count.get::<i64, _>(0).to_string()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
    };
    let service = Arc::new(serve_behind(layer(&pool), handler).await);
    let calls: Vec<_> = (0..12)
        .map(|at| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { service.post("/").key(&format!("k{at}")).send().await })
        })
        .collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(effects(&db, "paid").await, 12);
    no_transaction_is_left(&db).await;
}

/// A handler that says that it has begun, and goes on when it is let.
struct Gate {
    begun: Notify,
    open: Semaphore,
}

fn gated(layer: IdempotencyLayer) -> (Arc<Gate>, axum::routing::MethodRouter) {
    let gate = Arc::new(Gate { begun: Notify::new(), open: Semaphore::new(0) });
    let inside = Arc::clone(&gate);
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        inside.begun.notify_one();
        inside.open.acquire().await.unwrap().forget();
        StatusCode::CREATED
    };
    (gate, post(handler).route_layer(layer))
}

#[tokio::test]
async fn beyond_max_in_flight_requests_wait_a_bounded_time_and_get_503() {
    let db = database().await;
    let limited = layer(&db).max_in_flight(1).acquire_timeout(SHORT);
    let (gate, first) = gated(limited.clone().operation("first"));
    let (_, clone) = gated(limited.operation("clone"));
    let service = serve(Router::new().route("/first", first).route("/clone", clone)).await;
    let busy = tokio::spawn(service.post("/first").key("busy").send());
    gate.begun.notified().await;
    // Another key of the same route, and a route of a clone: the limit is shared.
    for path in ["/first", "/clone"] {
        let started = Instant::now();
        let refused = service.post(path).key("waits").send().await;
        refused.is_rejected(503, "too-many-in-flight");
        assert_eq!(refused.header("retry-after"), Some("2"));
        assert_eq!(refused.json()["retry"], "same-key");
        assert!((SHORT..Duration::from_secs(3)).contains(&started.elapsed()), "{:?}", started.elapsed());
    }
    // A duplicate of what runs here needs no place to be told so.
    service.post("/first").key("busy").send().await.is_rejected(409, "in-flight");
    gate.open.add_permits(2);
    assert_eq!(busy.await.unwrap().status, 201);
    assert_eq!(service.post("/first").key("waits").send().await.status, 201);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (2, 2));
}

#[tokio::test]
async fn a_request_that_waits_gets_the_next_place() {
    let db = database().await;
    let (gate, route) = gated(layer(&db).max_in_flight(1));
    let service = serve(Router::new().route("/", route)).await;
    let first = tokio::spawn(service.post("/").key("first").send());
    gate.begun.notified().await;
    let second = tokio::spawn(service.post("/").key("second").send());
    gate.open.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    gate.begun.notified().await;
    gate.open.add_permits(1);
    assert_eq!(second.await.unwrap().status, 201);
}

#[tokio::test]
async fn a_limit_set_on_a_clone_is_its_own() {
    let db = database().await;
    let shared = layer(&db).max_in_flight(1).acquire_timeout(SHORT);
    let (gate, first) = gated(shared.clone().operation("first"));
    let (other, own) = gated(shared.max_in_flight(1).operation("own"));
    let service = serve(Router::new().route("/first", first).route("/own", own)).await;
    let busy = tokio::spawn(service.post("/first").key("busy").send());
    gate.begun.notified().await;
    other.open.add_permits(1);
    assert_eq!(service.post("/own").key("k").send().await.status, 201);
    gate.open.add_permits(1);
    assert_eq!(busy.await.unwrap().status, 201);
}

#[tokio::test]
async fn a_transaction_that_begins_late_takes_a_place_too() {
    let db = database().await;
    let (gate, route) = gated(layer(&db).optional().max_in_flight(1).acquire_timeout(SHORT));
    let service = serve(Router::new().route("/", route)).await;
    let busy = tokio::spawn(service.post("/").send());
    gate.begun.notified().await;
    service.post("/").send().await.is_rejected(503, "too-many-in-flight");
    service.post("/").key("k").send().await.is_rejected(503, "too-many-in-flight");
    gate.open.add_permits(1);
    assert_eq!(busy.await.unwrap().status, 201);
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn a_pool_of_one_serves_executions_and_replays() {
    let db = database().await;
    let pool = db.pool(1).await;
    let handler = async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
    let service = serve_behind(layer(&pool), handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 200);
    service.post("/").key("k").send().await.replays(&first);
    service.post("/").key("k").body("other").send().await.is_rejected(422, "key-reused");
}

#[tokio::test]
async fn a_pool_exhausted_by_others_is_503_in_bounded_time_and_leaves_nothing() {
    let db = database().await;
    let pool = db.pool(2).await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let layer = layer(&pool).optional().acquire_timeout(SHORT);
    let service = serve_behind(layer, handler).await;
    let held = hold(&pool).await;
    for call in [service.post("/").key("k"), service.post("/")] {
        let started = Instant::now();
        let refused = call.send().await;
        refused.is_rejected(503, "database-unavailable");
        assert_eq!(refused.header("retry-after"), Some("2"));
        assert!((SHORT..Duration::from_secs(3)).contains(&started.elapsed()), "{:?}", started.elapsed());
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    drop(held);
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    assert_eq!(states(&db).await, ["completed"]);
    no_transaction_is_left(&db).await;
}

async fn hold(pool: &PgPool) -> Vec<sqlx::pool::PoolConnection<sqlx::Postgres>> {
    let mut held = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        held.push(pool.acquire().await.unwrap());
    }
    held
}
