//! Without a key, or on a method that the layer does not act on: the same handler, the same rules,
//! and no record.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use devpg::TestDb;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgPool};
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{RejectionKind, Settlement, Tx, TxHandle};

use crate::support::{
    Service, Turnstile, database, effect, effects, is_sound, layer, poll_once, records, serve, serve_behind,
};

async fn serving(pool: &PgPool, route: MethodRouter) -> Service {
    let route = route.route_layer(layer(pool).optional());
    serve(Router::new().route("/", route).layer(CatchPanicLayer::new())).await
}

/// Nothing is ever recorded, and as many effects are there.
async fn has(db: &TestDb, paid: i64) {
    is_sound(db, db).await;
    assert_eq!((records(db).await, effects(db, "paid").await), (0, paid));
}

#[tokio::test]
async fn without_a_key_effects_follow_the_status() {
    let db = database().await;
    let handler = async |mut tx: Tx, body: String| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::from_u16(body.parse().unwrap()).unwrap()
    };
    let service = serving(&db, post(handler)).await;
    for (status, paid) in [("201", 1), ("402", 1), ("401", 1), ("500", 1), ("303", 2), ("204", 3)] {
        let answer = service.post("/").body(status).send().await;
        assert_eq!(answer.status.as_str(), status);
        has(&db, paid).await;
    }
}

#[tokio::test]
async fn what_the_handler_says_counts_without_a_key_too() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        (StatusCode::PAYMENT_REQUIRED, Settlement::Complete, "declined, and noted")
    };
    let service = serving(&db, post(handler)).await;
    assert_eq!(service.post("/").send().await.status, 402);
    has(&db, 1).await;
}

#[tokio::test]
async fn with_a_key_the_same_handler_is_protected() {
    let db = database().await;
    let handler = async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
    let service = serving(&db, post(handler)).await;
    let first = service.post("/").key("k").send().await;
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (1, 1));
}

#[tokio::test]
async fn a_get_with_a_tx_works_and_commits() {
    let db = database().await;
    let handler = async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
    let service = serve(Router::new().route("/", get(handler).route_layer(layer(&db)))).await;
    for n in 1..=2 {
        // The key means nothing on a GET.
        let answer = service.get("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (200, false));
        has(&db, n).await;
    }
}

#[tokio::test]
async fn a_swallowed_error_without_a_key_is_a_500() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        let _ = effect(&mut tx, &"too long".repeat(20)).await;
        StatusCode::CREATED
    };
    let service = serving(&db, post(handler)).await;
    service.post("/").send().await.is_rejected(500, "transaction-aborted");
    has(&db, 0).await;
}

#[tokio::test]
async fn a_savepoint_left_open_without_a_key_is_a_500() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        let mut nested = tx.begin().await.unwrap();
        effect(&mut nested, "paid").await.unwrap();
        std::mem::forget(nested);
        StatusCode::CREATED
    };
    let service = serving(&db, post(handler)).await;
    service.post("/").send().await.is_rejected(500, "transaction-aborted");
    has(&db, 0).await;
}

#[tokio::test]
async fn a_constraint_that_fails_at_commit_without_a_key_is_a_500() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        sqlx::query("insert into child values (1)").execute(&mut *tx).await.unwrap();
        StatusCode::CREATED
    };
    let service = serving(&db, post(handler)).await;
    service.post("/").send().await.is_rejected(500, "commit-refused");
    has(&db, 0).await;
}

#[tokio::test]
async fn a_backend_that_is_terminated_without_a_key_is_a_503() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        let _ = sqlx::raw_sql("select pg_terminate_backend(pg_backend_pid())").execute(&mut *tx).await;
        StatusCode::CREATED
    };
    let service = serving(&db, post(handler)).await;
    service.post("/").send().await.is_rejected(503, "database-unavailable");
    has(&db, 0).await;
}

#[tokio::test]
async fn a_panic_without_a_key_keeps_nothing() {
    let db = database().await;
    let handler = async |mut tx: Tx| -> StatusCode {
        effect(&mut tx, "paid").await.unwrap();
        panic!("after the effect");
    };
    let service = serving(&db, post(handler)).await;
    assert_eq!(service.post("/").send().await.status, 500);
    has(&db, 0).await;
}

/// A handle may live on after its request; the transaction must not live on in it.
#[tokio::test]
async fn a_panic_without_a_key_ends_the_transaction_although_a_handle_is_kept() {
    let db = database().await;
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let handler = async move |Extension(handle): Extension<TxHandle>| -> StatusCode {
        effect(&mut handle.lend().await.unwrap(), "paid").await.unwrap();
        *keeps.lock().unwrap() = Some(handle);
        panic!("after the effect");
    };
    let service = serving(&db, post(handler)).await;
    assert_eq!(service.post("/").send().await.status, 500);
    assert!(kept.lock().unwrap().is_some());
    has(&db, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tx_kept_without_a_key_is_a_500_and_nothing_is_committed() {
    let db = database().await;
    let gate = Turnstile::default();
    let at = gate.clone();
    let handler = async move |mut tx: Tx, body: String| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        let at = at.clone();
        tokio::spawn(async move {
            at.pass().await;
            drop(tx);
        });
        StatusCode::from_u16(body.parse().unwrap()).unwrap().into_response()
    };
    let service = serving(&db, post(handler)).await;
    service.post("/").body("201").send().await.is_rejected(500, "transaction-kept");
    assert_eq!(service.post("/").body("404").send().await.status, 404);
    gate.open();
    gate.open();
    has(&db, 0).await;
}

#[tokio::test]
async fn a_second_tx_without_a_key_is_a_clear_500() {
    let db = database().await;
    let service = serving(&db, post(async |_one: Tx, _two: Tx| StatusCode::CREATED)).await;
    service.post("/").send().await.is_rejected(500, "transaction-unavailable");
    has(&db, 0).await;
}

#[tokio::test]
async fn a_handler_without_a_tx_takes_no_connection() {
    let db = database().await;
    let pool = db.pool(1).await;
    let taken = pool.acquire().await.unwrap();
    let service = serving(&pool, get(async || "fine").post(async || "fine")).await;
    assert_eq!(service.get("/").send().await.text(), "fine");
    assert_eq!(service.post("/").send().await.text(), "fine");
    drop(taken);
}

/// As a handler's own timeout does it, around the extraction.
#[tokio::test]
async fn giving_up_on_a_tx_while_it_begins_poisons_nothing() {
    let db = database().await;
    let handler = async |Extension(handle): Extension<TxHandle>, body: String| -> Response {
        poll_once(handle.lend()).await;
        if body == "again" {
            let mut tx = handle.lend().await.unwrap();
            effect(&mut tx, "paid").await.unwrap();
        }
        StatusCode::CREATED.into_response()
    };
    let service = serving(&db, post(handler)).await;
    for _ in 0..5 {
        assert_eq!(service.post("/").send().await.status, 201);
    }
    has(&db, 0).await;
    assert_eq!(service.post("/").body("again").send().await.status, 201);
    has(&db, 1).await;
}

#[tokio::test]
async fn a_tx_that_cannot_begin_is_a_503_in_bounded_time() {
    let db = database().await;
    let pool = db.pool(1).await;
    let taken = pool.acquire().await.unwrap();
    let handler = async |Extension(handle): Extension<TxHandle>| -> Response {
        let refused = handle.lend().await.unwrap_err();
        assert_eq!(refused.kind(), RejectionKind::DatabaseUnavailable);
        refused.into_response()
    };
    let limited = layer(&pool).optional().acquire_timeout(std::time::Duration::from_millis(50));
    let service = serve_behind(limited, handler).await;
    service.post("/").send().await.is_rejected(503, "database-unavailable");
    drop(taken);
    is_sound(&db, &pool).await;
}

#[tokio::test]
async fn a_begin_that_panics_leaves_nobody_waiting() {
    let db = database().await;
    let broken = Arc::new(AtomicUsize::new(0));
    let options = PgPoolOptions::new().max_connections(2).after_connect(move |_, _| {
        let broken = broken.clone();
        Box::pin(async move {
            assert!(broken.fetch_add(1, Ordering::SeqCst) != 1, "a callback of the test");
            Ok(())
        })
    });
    let pool = db.pool_with(options).await;
    let held = pool.acquire().await.unwrap();
    let handler = async |Extension(handle): Extension<TxHandle>| {
        let refused = handle.lend().await.unwrap_err();
        assert_eq!(refused.kind(), RejectionKind::DatabaseUnavailable);
        let mut tx = handle.lend().await.unwrap();
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&pool).optional(), handler).await;
    let answer = tokio::time::timeout(std::time::Duration::from_secs(10), service.post("/").send()).await;
    assert_eq!(answer.expect("it hangs").status, 201);
    drop(held);
}
