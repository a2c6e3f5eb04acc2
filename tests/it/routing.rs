//! Where the layer is added, and what passes it.

use std::panic::catch_unwind;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::routing::{any, delete, get, patch, post, put};
use sqlx::PgPool;
use tower::ServiceExt as _;
use tower_idempotency::Tx;

use crate::support::{
    Logs, database, effect, effects, layer, layer_of, records, serve, serve_behind, tenant,
};

async fn pay(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::CREATED, id.to_string())
}

async fn operations(pool: &PgPool) -> Vec<String> {
    let operations = sqlx::query_scalar("select operation from idempotency.record order by operation");
    operations.fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn with_route_layer_a_put_on_a_post_route_is_405_and_leaves_no_row() {
    let db = database().await;
    let on_the_method = Router::new().route("/method", post(pay).route_layer(layer(&db)));
    let on_the_router = Router::new().route("/router", post(pay)).route_layer(layer(&db));
    let service = serve(on_the_method.merge(on_the_router)).await;
    let keyless = service.call("PUT", "/method").send().await;
    assert_eq!((keyless.status.as_u16(), keyless.header("allow")), (405, Some("POST")));
    let keyed = service.call("PUT", "/method").key("k").send().await;
    assert_eq!((keyed.status.as_u16(), keyed.header("allow")), (405, Some("POST")));
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    // Not refused by what was not recorded.
    for path in ["/method", "/router"] {
        service.post(path).send().await.is_rejected(400, "key-missing");
        assert_eq!(service.post(path).key(path).send().await.status, 201);
    }
}

#[tokio::test]
async fn with_route_layer_an_unknown_path_is_404_and_leaves_no_row() {
    let db = database().await;
    let app = Router::new().route("/a", post(pay).route_layer(layer(&db)));
    let service = serve(app.route("/b", post(pay)).route_layer(layer(&db).operation("b"))).await;
    for call in [service.post("/unknown"), service.post("/unknown").key("k")] {
        let answer = call.send().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (404, ""));
    }
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn with_layer_on_a_method_router_a_keyless_put_is_400_and_a_405_is_not_recorded() {
    let db = database().await;
    let service = serve(Router::new().route("/", post(pay).layer(layer(&db)))).await;
    service.call("PUT", "/").send().await.is_rejected(400, "key-missing");
    let keyed = service.call("PUT", "/").key("k").send().await;
    assert_eq!((keyed.status.as_u16(), keyed.is_replay()), (405, false));
    assert_eq!(records(&db).await, 0);
    assert_eq!(service.post("/").key("k").send().await.status, 201);
}

#[tokio::test]
async fn with_layer_on_a_router_an_unknown_path_is_400_or_a_404_that_is_not_recorded() {
    let db = database().await;
    let app = Router::new().route("/", post(pay)).layer(layer(&db).settle_with(|_| {
        // Whatever is said here: there is no such route.
        tower_idempotency::Settlement::Fail
    }));
    let service = serve(app).await;
    service.post("/unknown").send().await.is_rejected(400, "key-missing");
    assert_eq!(service.post("/unknown").key("k").send().await.status, 404);
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn a_405_of_the_handler_itself_is_not_recorded() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::METHOD_NOT_ALLOWED
    };
    let service = serve_behind(layer(&db), handler).await;
    for _ in 0..2 {
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (405, false));
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
}

#[tokio::test]
async fn a_route_for_any_method_takes_layer_and_not_route_layer() {
    let db = database().await;
    let on_any = layer(&db);
    let refused = catch_unwind(std::panic::AssertUnwindSafe(move || {
        drop(any::<_, _, ()>(pay).route_layer(on_any));
    }));
    assert!(refused.is_err(), "axum lets `any(..).route_layer` pass; the documentation says otherwise");

    let service = serve(Router::new().route("/", any(pay).layer(layer(&db)))).await;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        service.call(method, "/").send().await.is_rejected(400, "key-missing");
    }
    let first = service.post("/").key("k").send().await;
    service.post("/").key("k").send().await.replays(&first);
    // Not protected; its transaction commits all the same.
    assert_eq!(service.get("/").send().await.status, 201);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (1, 2));
}

#[tokio::test]
async fn post_put_patch_and_delete_need_a_key_and_all_others_pass() {
    let db = database().await;
    let service = layer(&db);
    let service = tower::ServiceBuilder::new()
        .layer(service)
        .service_fn(async |_: Request| Ok::<_, std::convert::Infallible>(StatusCode::NO_CONTENT));
    let status = async |method: &[u8]| {
        let method = Method::from_bytes(method).unwrap();
        let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(status(method.as_bytes()).await, 400, "{method}");
    }
    for method in ["GET", "HEAD", "OPTIONS", "CONNECT", "TRACE", "QUERY", "PURGE", "post"] {
        assert_eq!(status(method.as_bytes()).await, 204, "{method}");
    }
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn a_safe_method_with_a_key_is_not_recorded() {
    let db = database().await;
    let app = Router::new().route("/", get(pay).route_layer(layer(&db)));
    let service = serve(app).await;
    for _ in 0..2 {
        let answer = service.get("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 2));
}

#[tokio::test]
async fn methods_narrows_what_the_layer_acts_on() {
    let db = database().await;
    let narrowed = layer(&db).methods([Method::POST, Method::PATCH]);
    let routes = post(pay).put(pay).patch(pay).delete(pay).route_layer(narrowed);
    let service = serve(Router::new().route("/", routes)).await;
    for method in ["PUT", "DELETE"] {
        let answer = service.call(method, "/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false), "{method}");
    }
    assert_eq!(records(&db).await, 0);
    for method in ["POST", "PATCH"] {
        service.call(method, "/").send().await.is_rejected(400, "key-missing");
    }
}

#[tokio::test]
async fn methods_panics_on_one_that_the_layer_does_not_know() {
    let db = database().await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::CONNECT, Method::TRACE] {
        let layer = layer(&db);
        let narrowed = std::panic::AssertUnwindSafe(|| layer.methods([Method::POST, method.clone()]));
        let panic = catch_unwind(narrowed).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(method.as_str()), "{message}");
    }
}

#[tokio::test]
async fn without_a_name_the_operation_is_the_method_and_the_matched_path_with_nesting() {
    let db = database().await;
    let unnamed = layer_of(&db, tenant());
    let routes = post(pay).put(pay).route_layer(unnamed.clone());
    let inner = Router::new().route("/payments/{id}", routes).route("/", delete(pay).route_layer(unnamed));
    let service = serve(Router::new().nest("/v1", inner.clone()).nest("/v2", inner)).await;
    for path in ["/v1/payments/7", "/v2/payments/7"] {
        assert_eq!(service.post(path).key("k").send().await.status, 201, "{path}");
        assert_eq!(service.call("PUT", path).key("k").send().await.status, 201, "{path}");
    }
    assert_eq!(service.call("DELETE", "/v1").key("k").send().await.status, 201);
    // The same operation: a captured value is not part of its name, but of the fingerprint.
    service.post("/v1/payments/8").key("k").send().await.is_rejected(422, "key-reused");
    let expected = [
        "DELETE /v1",
        "POST /v1/payments/{id}",
        "POST /v2/payments/{id}",
        "PUT /v1/payments/{id}",
        "PUT /v2/payments/{id}",
    ];
    assert_eq!(operations(&db).await, expected);
}

#[tokio::test]
async fn without_a_matched_path_the_operation_is_the_whole_path_and_one_warning_says_so() {
    let logs = Logs::capture();
    let db = database().await;
    let unnamed = layer_of(&db, tenant());
    let app = Router::new().fallback(pay).layer(unnamed.clone());
    // A nested service sees the rest of the path only.
    let nested = Router::new().fallback(pay).layer(unnamed.clone());
    let app = app.route("/matched", patch(pay).route_layer(unnamed)).nest_service("/nested", nested);
    let service = serve(app).await;
    for path in ["/a/1?x=y", "/a/2", "/nested/a/1"] {
        assert_eq!(service.post(path).key("k").send().await.status, 201);
    }
    assert_eq!(service.call("PATCH", "/matched").key("k").send().await.status, 201);
    assert_eq!(operations(&db).await, ["PATCH /matched", "POST /a/1", "POST /a/2", "POST /nested/a/1"]);
    assert_eq!(logs.lines_with("no matched path").len(), 1, "{}", logs.text());
}

#[tokio::test]
async fn an_operation_with_an_impossible_name_panics_where_it_is_given() {
    let db = database().await;
    for name in [String::new(), "n".repeat(256), "a\nb".to_owned(), "a\0b".to_owned()] {
        let layer = layer(&db);
        let named = std::panic::AssertUnwindSafe(|| layer.operation(name.clone()));
        assert!(catch_unwind(named).is_err(), "{name:?}");
    }
    let longest = layer(&db).operation("n".repeat(255));
    let service = serve(Router::new().route("/", put(pay).route_layer(longest))).await;
    assert_eq!(service.call("PUT", "/").key("k").send().await.status, 201);
}
