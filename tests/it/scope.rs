//! A key is one tenant's, for one operation.

use std::convert::Infallible;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderName, Request, Response};
use axum::routing::post;
use sqlx::PgPool;
use tower::ServiceBuilder;
use tower_idempotency::{Idempotency, IdempotencyLayer, Tenant};

use crate::support::{Answer, Gate, database, effects, layer, layer_of, payment, records, serve, tenant};

#[tokio::test]
async fn one_key_of_two_tenants_is_two_keys() {
    let db = database().await;
    let gate = Gate::open();
    let service = serve(payment(&gate, layer(&db))).await;
    let send = async |tenant| service.post("/").key("k").header("x-tenant", tenant).json("{}").send().await;
    each_is_executed_once(&gate, ["alice", "bob", "Alice", "1", "01", "alice2"], send).await;
    // Another tenant cannot tell that the key was used, nor for what.
    let bob = service.post("/").key("k").header("x-tenant", "carol").json("{\"other\":1}").send().await;
    assert_eq!((bob.status.as_u16(), bob.is_replay()), (201, false));
    assert_eq!(effects(&db, "paid").await, 7);
}

#[tokio::test]
async fn one_key_of_two_operations_is_two_keys() {
    let db = database().await;
    let gate = Gate::open();
    let mut router = Router::new();
    for (path, operation) in OPERATIONS {
        router = router.nest(path, payment(&gate, layer(&db).operation(operation)));
    }
    let service = serve(router).await;
    let send = async |(path, _): (&str, &str)| service.post(path).key("k").json("{}").send().await;
    each_is_executed_once(&gate, OPERATIONS, send).await;
}

const OPERATIONS: [(&str, &str); 4] =
    [("/a", "payments.create"), ("/b", "payments.refund"), ("/c", "Payments.create"), ("/d", "payments")];

/// However tenant, operation and key are cut, they do not run into each other.
#[tokio::test]
async fn tenant_operation_and_key_are_kept_apart() {
    let db = database().await;
    let gate = Gate::open();
    let nested = |operation| payment(&gate, layer(&db).operation(operation));
    let service = serve(Router::new().nest("/1", nested("ab")).nest("/2", nested("b"))).await;
    let send = async |(path, tenant, key): (&str, &str, &str)| {
        service.post(path).key(key).header("x-tenant", tenant).json("{}").send().await
    };
    let cuts =
        [("/1", "t", "k"), ("/2", "ta", "k"), ("/2", "t", "abk"), ("/2", "t", "k"), ("/1", "ta", "bk")];
    each_is_executed_once(&gate, cuts, send).await;
}

#[tokio::test]
async fn without_a_name_one_router_nested_twice_is_two_operations() {
    let db = database().await;
    let gate = Gate::open();
    let payments = payment(&gate, unnamed(&db));
    let router = Router::new().nest("/v1/payments", payments.clone()).nest("/v2/payments", payments);
    let service = serve(router).await;
    let send = async |path| service.post(path).key("k").json("{}").send().await;
    each_is_executed_once(&gate, ["/v1/payments", "/v2/payments"], send).await;
    assert_eq!(operations(&db).await, ["POST /v1/payments", "POST /v2/payments"]);
}

/// With a name it is one operation, on two paths: the key is reused with another request.
#[tokio::test]
async fn with_a_name_one_router_nested_twice_is_one_operation() {
    let db = database().await;
    let gate = Gate::open();
    let payments = payment(&gate, layer(&db).operation("payments.create"));
    let service = serve(Router::new().nest("/v1", payments.clone()).nest("/v2", payments)).await;
    let first = service.post("/v1").key("k").json("{}").send().await;
    service.post("/v2").key("k").json("{}").send().await.is_rejected(422, "key-reused");
    service.post("/v1").key("k").json("{}").send().await.replays(&first);
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn without_a_name_the_operation_is_method_and_matched_path() {
    let db = database().await;
    let handler =
        async |idempotency: Idempotency| format!("{} {}", idempotency.tenant(), idempotency.operation());
    let pay = post(handler).put(handler).patch(handler).delete(handler);
    let service = serve(Router::new().route("/payments/{id}", pay).route_layer(unnamed(&db))).await;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let call =
            |id: u8| service.call(method, &format!("/payments/{id}?q")).key("k").header("x-tenant", "alice");
        let first = call(7).send().await;
        assert_eq!(first.text(), format!("alice {method} /payments/{{id}}"));
        call(7).send().await.replays(&first);
        // Another path parameter is not another operation but another request.
        call(8).send().await.is_rejected(422, "key-reused");
    }
    assert_eq!(records(&db).await, 4);
}

/// Under plain tower there is no router, and no matched path.
#[tokio::test]
async fn without_a_matched_path_the_operation_is_the_whole_path() {
    let db = database().await;
    let gate = Gate::open();
    let runs = gate.clone();
    let inner = tower::service_fn(move |_: Request<axum::body::Body>| {
        let runs = runs.clone();
        async move {
            runs.pass().await;
            Ok::<_, Infallible>(Response::new(axum::body::Body::from("done")))
        }
    });
    let inner = ServiceBuilder::new().layer(unnamed(&db)).service(inner);
    let service = serve(Router::new().nest_service("/api", inner)).await;
    let send = async |path| service.post(path).key("k").json("{}").send().await;
    each_is_executed_once(&gate, ["/api/payments/7", "/api/payments/8", "/api/refunds"], send).await;
    assert_eq!(operations(&db).await, ["POST /api/payments/7", "POST /api/payments/8", "POST /api/refunds"]);
}

#[tokio::test]
async fn without_a_tenant_nothing_runs() {
    let db = database().await;
    let header = HeaderName::from_static("x-account");
    for tenant in [
        Tenant::from_fn(|_: &Parts| None::<String>),
        Tenant::from_fn(|_: &Parts| ""),
        Tenant::from_fn(|_: &Parts| Some(String::new())),
        Tenant::trusted_header(header),
    ] {
        let gate = Gate::open();
        let named = format!("{tenant:?}");
        let layer = layer_of(&db, tenant).operation("test");
        let service = serve(payment(&gate, layer)).await;
        for _ in 0..2 {
            let answer = service.post("/").key("k").json("{}").send().await;
            answer.is_rejected(403, "tenant-missing");
            assert_eq!(answer.json()["retry"], "never", "{named}");
        }
        assert_eq!(gate.runs(), 0, "{named}");
    }
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn a_trusted_header_is_one_readable_line() {
    let db = database().await;
    let gate = Gate::open();
    let tenant = Tenant::trusted_header(HeaderName::from_static("x-account"));
    let service = serve(payment(&gate, layer_of(&db, tenant).operation("test"))).await;
    let call = || service.post("/").key("k").json("{}");
    call().header("x-account", "").send().await.is_rejected(403, "tenant-missing");
    call().header("x-account", &b"\xe9"[..]).send().await.is_rejected(403, "tenant-missing");
    let twice = call().header("x-account", "alice").header("x-account", "bob");
    twice.send().await.is_rejected(403, "tenant-missing");
    assert_eq!(gate.runs(), 0);
    assert_eq!(records(&db).await, 0);
    let send = async |tenant| call().header("x-account", tenant).send().await;
    each_is_executed_once(&gate, ["alice", "bob"], send).await;
}

/// Sends each twice: two executions of nothing, and each has a response of its own.
async fn each_is_executed_once<T: Copy>(
    gate: &Gate,
    requests: impl IntoIterator<Item = T> + Clone,
    send: impl AsyncFn(T) -> Answer,
) {
    let before = gate.runs();
    let mut first = Vec::new();
    for request in requests.clone() {
        let answer = send(request).await;
        assert!(answer.status.is_success() && !answer.is_replay(), "{answer:?}");
        first.push(answer);
    }
    for (request, first) in requests.into_iter().zip(&first) {
        send(request).await.replays(first);
    }
    assert_eq!(gate.runs() - before, first.len());
}

fn unnamed(pool: &PgPool) -> IdempotencyLayer {
    layer_of(pool, tenant())
}

async fn operations(pool: &PgPool) -> Vec<String> {
    let operations = sqlx::query_scalar("select operation from idempotency.record order by 1");
    operations.fetch_all(pool).await.unwrap()
}
