//! What waits for the commit runs after it, and only then.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use devpg::TestDb;
use sqlx::PgPool;
use tokio::sync::mpsc;
use tower_idempotency::{IdempotencyLayer, Settlement, Tx};

use crate::support::{Fate, Proxy, Service, database, effect, effects, is_sound, layer, serve, serve_behind};

/// What hooks saw: how many effects were committed. A hook that is dropped sends nothing.
type Told = mpsc::UnboundedReceiver<i64>;

/// The next one, or `None` when nobody can tell any more.
async fn next(told: &mut Told) -> Option<i64> {
    tokio::time::timeout(Duration::from_secs(10), told.recv()).await.expect("a hook ran, or all are gone")
}

/// Two handlers on `/`: the status of the answer is in the request's body.
async fn hooked(db: &TestDb, layer: IdempotencyLayer) -> (Service, Told) {
    let (tell, told) = mpsc::unbounded_channel();
    let pool = PgPool::clone(db);
    let handler = async move |mut tx: Tx, body: String| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        let (tell, pool) = (tell.clone(), pool.clone());
        tx.after_commit(async move {
            tell.send(effects(&pool, "paid").await).unwrap();
        });
        match body.parse::<u16>() {
            Ok(status) => StatusCode::from_u16(status).unwrap().into_response(),
            Err(_) => (Settlement::Rerun, "again").into_response(),
        }
    };
    let route = post(handler.clone()).route_layer(layer.clone());
    let router = Router::new().route("/", route).route("/get", get(handler).route_layer(layer));
    (serve(router).await, told)
}

#[tokio::test]
async fn a_hook_runs_once_and_sees_the_committed_effect() {
    let db = database().await;
    let (service, mut told) = hooked(&db, layer(&db)).await;
    let first = service.post("/").key("k").body("201").send().await;
    assert_eq!(next(&mut told).await, Some(1));
    service.post("/").key("k").body("201").send().await.replays(&first);
    // Nobody else has a sender once the service is gone: nothing more was told.
    drop(service);
    assert_eq!(next(&mut told).await, None);
}

#[tokio::test]
async fn a_hook_of_an_execution_that_is_undone_does_not_run() {
    let db = database().await;
    let (service, mut told) = hooked(&db, layer(&db).max_reruns(1)).await;
    for body in ["402", "401", "500", "rerun"] {
        let answer = service.post("/").key(body).body(body).send().await;
        assert!(!answer.status.is_success(), "{answer:?}");
    }
    drop(service);
    assert_eq!(next(&mut told).await, None);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_hook_runs_for_unprotected_requests_by_the_same_rule() {
    let db = database().await;
    let (service, mut told) = hooked(&db, layer(&db).optional()).await;
    assert_eq!(service.post("/").body("402").send().await.status, 402);
    assert_eq!(service.post("/").body("500").send().await.status, 500);
    assert_eq!(service.post("/").body("201").send().await.status, 201);
    assert_eq!(next(&mut told).await, Some(1));
    assert_eq!(service.get("/get").body("200").send().await.status, 200);
    assert_eq!(next(&mut told).await, Some(2));
    drop(service);
    assert_eq!(next(&mut told).await, None);
}

#[tokio::test]
async fn a_hook_runs_after_a_commit_that_went_unanswered() {
    let db = database().await;
    let cut = std::sync::atomic::AtomicBool::new(false);
    let proxy = Proxy::to(&db, move |message| {
        let first = message.is_query("COMMIT") && !cut.swap(true, std::sync::atomic::Ordering::SeqCst);
        if first { Fate::Unanswered } else { Fate::Forward }
    });
    let pool = proxy.pool(3).await;
    let (service, mut told) = hooked(&db, layer(&pool)).await;
    assert_eq!(service.post("/").key("k").body("201").send().await.status, 201);
    assert_eq!(next(&mut told).await, Some(1));
}

#[tokio::test]
async fn a_hook_that_panics_or_hangs_keeps_no_other_from_running() {
    let db = database().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = async move |tx: Tx| {
        tx.after_commit(async { panic!("a hook of the test") });
        tx.after_commit(std::future::pending());
        let tell = tell.clone();
        tx.after_commit(async move { tell.send(()).unwrap() });
        StatusCode::CREATED
    };
    let idempotent = layer(&db);
    let service = serve_behind(idempotent.clone(), handler).await;
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    idempotent.drain().await;
    let heard = tokio::time::timeout(std::time::Duration::from_secs(10), told.recv()).await;
    assert_eq!(heard.expect("it did not run"), Some(()));
}
