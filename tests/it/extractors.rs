//! What a handler can ask for, with and without the layer.

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower_idempotency::{DownstreamKey, Idempotency, Tx, TxHandle};

use crate::support::{Logs, Runs, database, effect, effects, is_sound, layer, serve};

#[tokio::test]
async fn a_handler_knows_key_tenant_and_operation() {
    let db = database().await;
    let handler = async |idempotency: Idempotency| {
        format!("{} {} {}", idempotency.key().as_str(), idempotency.tenant(), idempotency.operation())
    };
    let route = post(handler).route_layer(layer(&db).operation("payments.create"));
    let service = serve(Router::new().route("/", route)).await;
    let answer = service.post("/").key("\"k-1\"").header("x-tenant", "acme").send().await;
    assert_eq!(answer.text(), "k-1 acme payments.create");
}

#[tokio::test]
async fn a_downstream_key_is_the_same_on_each_attempt_and_differs_for_anything_else() {
    let db = database().await;
    let handler = async |idempotency: Idempotency, step: String| {
        // Released: each request is an attempt.
        (StatusCode::SERVICE_UNAVAILABLE, idempotency.downstream_key(&step).to_string())
    };
    let layer = layer(&db);
    let router = Router::new()
        .route("/", post(handler).route_layer(layer.clone().operation("a")))
        .route("/b", post(handler).route_layer(layer.operation("a-b")));
    let service = serve(router).await;
    let ask = async |path: &str, tenant: &'static str, key: &str, step: &'static str| {
        let answer = service.post(path).key(key).header("x-tenant", tenant).body(step).send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay(), answer.body.len()), (503, false, 36));
        answer.text().to_owned()
    };
    let first = ask("/", "t", "b-c", "charge").await;
    assert_eq!(ask("/", "t", "b-c", "charge").await, first);
    let others = [
        ask("/", "t", "b-c", "receipt").await,
        ask("/", "t", "other", "charge").await,
        ask("/", "other", "b-c", "charge").await,
        // The same when they are only joined: a + b-c, a-b + c.
        ask("/b", "t", "c", "charge").await,
    ];
    assert!(!others.contains(&first), "{first} {others:?}");
    assert_ne!(first, DownstreamKey::derive(["t", "a", "b-c", "charge"]).to_string());
}

#[tokio::test]
async fn an_optional_idempotency_is_none_where_there_is_no_key() {
    let db = database().await;
    let handler = async |idempotency: Option<Idempotency>| {
        idempotency.map_or("none".to_owned(), |idempotency| idempotency.key().as_str().to_owned())
    };
    let route = get(handler).post(handler).route_layer(layer(&db).optional());
    let service = serve(Router::new().route("/", route).route("/bare", post(handler))).await;
    assert_eq!(service.post("/").key("k").send().await.text(), "k");
    assert_eq!(service.post("/").send().await.text(), "none");
    assert_eq!(service.get("/").key("k").send().await.text(), "none");
    assert_eq!(service.post("/bare").key("k").send().await.text(), "none");
}

#[tokio::test]
async fn a_handler_that_needs_the_key_refuses_a_request_without_one() {
    let db = database().await;
    let route = post(async |_: Idempotency| "ran").route_layer(layer(&db).optional());
    let service = serve(Router::new().route("/", route)).await;
    service.post("/").send().await.is_rejected(400, "key-missing");
}

#[tokio::test]
async fn an_extractor_without_a_layer_is_a_500_that_the_log_explains() {
    let log = Logs::capture();
    let router = Router::new()
        .route("/tx", post(async |_: Tx| "ran"))
        .route("/idempotency", post(async |_: Idempotency| "ran"));
    let service = serve(router).await;
    for (path, name) in [("/tx", "`Tx`"), ("/idempotency", "`Idempotency`")] {
        service.post(path).key("k").send().await.is_rejected(500, "extension-missing");
        log.contain(&format!("{name} was extracted on a route without an idempotency layer"));
    }
}

#[tokio::test]
async fn a_handler_is_tested_without_a_layer_and_leaves_nothing_behind() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        counted.next();
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let handle = TxHandle::new(db.begin().await.unwrap());
    let service = serve(Router::new().route("/", post(handler)).layer(Extension(handle.clone()))).await;
    for _ in 0..2 {
        assert_eq!(service.post("/").send().await.status, 201);
    }
    let mut tx = handle.lend().await.unwrap();
    let seen: i64 = sqlx::query_scalar("select count(*) from effect").fetch_one(&mut *tx).await.unwrap();
    assert_eq!((seen, runs.count(), effects(&db, "paid").await), (2, 2, 0));
    drop((tx, handle, service));
    is_sound(&db, &db).await;
    assert_eq!(effects(&db, "paid").await, 0);
}
