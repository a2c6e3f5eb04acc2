//! The answers that the layer makes itself, in its own form or the service's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::http::{HeaderName, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Router, extract::Request};
use tower_idempotency::{Outcome, Rejection, RejectionKind, Retry, Tx};

use crate::support::{database, effect, layer, layer_of, serve};

async fn pay(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::CREATED, id.to_string())
}

#[tokio::test]
async fn a_rejection_is_a_problem_document_with_advice() {
    let db = database().await;
    let service = serve(Router::new().route("/", post(pay).route_layer(layer(&db)))).await;
    let answer = service.post("/").send().await;
    answer.is_rejected(400, "key-missing");
    let problem = answer.json();
    assert_eq!(problem["title"], RejectionKind::KeyMissing.title());
    assert_eq!(problem["detail"], RejectionKind::KeyMissing.detail());
    assert_eq!(problem["retry"], "new-key");
    assert_eq!((answer.header("link"), answer.header("retry-after")), (None, None));
}

#[tokio::test]
async fn documentation_is_where_a_rejection_points_to() {
    let db = database().await;
    let url = "https://docs.example/idempotency";
    let service = serve(Router::new().route("/", post(pay).route_layer(layer(&db).documentation(url)))).await;
    let answer = service.post("/").send().await;
    assert_eq!(answer.json()["type"], "https://docs.example/idempotency#key-missing");
    let link = "<https://docs.example/idempotency>; rel=\"describedby\"";
    assert_eq!(answer.header("link"), Some(link));
    // Only there.
    assert_eq!(service.post("/").key("k").send().await.header("link"), None);
    assert_eq!(service.post("/").key("k").send().await.header("link"), None);
}

#[tokio::test]
async fn documentation_panics_on_an_url_that_no_header_can_carry() {
    let db = database().await;
    for url in ["https://docs.example/ü", "https://docs.example/\n", "https://docs.example/>"] {
        let layer = layer(&db);
        assert!(catch_unwind(AssertUnwindSafe(|| layer.documentation(url))).is_err(), "{url:?}");
    }
}

#[tokio::test]
async fn rejection_with_draws_all_of_them_also_those_of_the_extractor() {
    let db = database().await;
    let drawn = layer(&db).rejection_with(|rejection| {
        let retry = rejection.kind().retry() == Retry::SameKey;
        let body = format!("{} {retry}", rejection.kind().code());
        (StatusCode::IM_A_TEAPOT, [("x-own", "yes")], body).into_response()
    });
    // It takes the transaction twice.
    let twice = async |_first: Tx, _second: Tx| "unreachable";
    let full = drawn.clone().operation("full").max_in_flight(1).acquire_timeout(std::time::Duration::ZERO);
    let held = db.pool(1).await;
    let none = layer_of(&held, crate::support::tenant())
        .operation("none")
        .acquire_timeout(std::time::Duration::from_millis(50))
        .rejection_with(|rejection| (StatusCode::IM_A_TEAPOT, rejection.kind().code()).into_response());
    let app = Router::new()
        .route("/", post(pay).route_layer(drawn.clone()))
        .route("/twice", post(twice).route_layer(drawn))
        .route("/full", post(pay).route_layer(full))
        .route("/none", post(pay).route_layer(none));
    let service = serve(app).await;

    let missing = service.post("/").send().await;
    assert_eq!((missing.status.as_u16(), missing.text()), (418, "key-missing false"));
    assert_eq!((missing.header("x-own"), missing.header("cache-control")), (Some("yes"), Some("no-store")));
    let unavailable = service.post("/twice").key("k").send().await;
    assert_eq!((unavailable.status.as_u16(), unavailable.text()), (418, "transaction-unavailable true"));
    // What the form leaves out is added.
    let connection = held.acquire().await.unwrap();
    let busy = service.post("/none").key("k").send().await;
    assert_eq!((busy.text(), busy.header("retry-after")), ("database-unavailable", Some("2")));
    drop(connection);
}

#[tokio::test]
async fn why_and_how_is_in_the_extensions_for_layers_outside() {
    let db = database().await;
    async fn look(request: Request, next: Next) -> impl IntoResponse {
        let response = next.run(request).await;
        let kind =
            response.extensions().get::<Rejection>().map_or("none", |rejection| rejection.kind().code());
        let outcome = response.extensions().get::<Outcome>().map_or("none", |outcome| outcome.as_str());
        let seen = format!("{kind} {outcome}");
        ([("x-seen", seen)], response)
    }
    let drawn = layer(&db).operation("drawn").rejection_with(|_| StatusCode::IM_A_TEAPOT.into_response());
    let app = Router::new()
        .route("/", post(pay).get(pay).route_layer(layer(&db)))
        .route("/drawn", post(pay).route_layer(drawn))
        .route_layer(from_fn(look));
    let service = serve(app).await;
    let seen = async |call: crate::support::Call| call.send().await.header("x-seen").unwrap().to_owned();
    assert_eq!(seen(service.post("/")).await, "key-missing key-missing");
    assert_eq!(seen(service.post("/drawn")).await, "key-missing key-missing");
    assert_eq!(seen(service.post("/").key("k")).await, "none completed");
    assert_eq!(seen(service.post("/").key("k")).await, "none replayed");
    assert_eq!(seen(service.get("/")).await, "none unprotected");
}

#[tokio::test]
async fn the_header_that_marks_a_replay_can_have_another_name() {
    let db = database().await;
    let named = layer(&db).replayed_header(HeaderName::from_static("x-replayed"));
    let service = serve(Router::new().route("/", post(pay).route_layer(named))).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.header("x-replayed"), first.header("idempotent-replayed")), (None, None));
    let second = service.post("/").key("k").send().await;
    assert_eq!((second.header("x-replayed"), second.header("idempotent-replayed")), (Some("true"), None));
}
