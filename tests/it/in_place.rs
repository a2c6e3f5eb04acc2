//! The handler runs where it would run without the layer.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::post;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::Tx;
use tracing::instrument::WithSubscriber as _;

use crate::support::{
    LogText, Logs, database, effect, effects, is_sound, layer, records, serve, serve_behind,
};

tokio::task_local! {
    static REQUEST_ID: &'static str;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outer_task_local_is_there() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        tokio::task::yield_now().await;
        REQUEST_ID.get()
    };
    let outer =
        from_fn(async |request: Request, next: Next| REQUEST_ID.scope("id-7", next.run(request)).await);
    let router = Router::new().route("/", post(handler).route_layer(layer(&db))).layer(outer);
    let service = serve(router).await;
    let answer = service.post("/").key("k").send().await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "id-7"));
}

async fn telling(mut tx: Tx) -> StatusCode {
    effect(&mut tx, "paid").await.unwrap();
    tracing::info!("the card is charged");
    tokio::task::yield_now().await;
    tracing::info!("the receipt is sent");
    StatusCode::CREATED
}

#[tokio::test]
async fn a_threads_own_subscriber_hears_the_handler() {
    let db = database().await;
    let log = Logs::capture();
    let service = serve_behind(layer(&db), telling).await;
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    log.contain("the card is charged");
    log.contain("the receipt is sent");
}

/// As a subscriber that an outer layer sets for the request alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_requests_own_subscriber_hears_the_handler_within_the_layers_span() {
    let db = database().await;
    let log = LogText::default();
    let heard = log.clone();
    let outer =
        from_fn(move |request: Request, next: Next| next.run(request).with_subscriber(heard.subscriber()));
    let router = Router::new().route("/", post(telling).route_layer(layer(&db))).layer(outer);
    let service = serve(router).await;
    assert_eq!(service.post("/").key("secret-key").send().await.status, 201);
    log.contain("the card is charged");
    log.contain("the receipt is sent");
    log.contain("operation=\"test\"}: it::in_place: the receipt is sent");
    log.do_not_contain("secret-key");
}

#[tokio::test]
async fn a_panic_reaches_an_outer_layer_with_its_payload() {
    let db = database().await;
    let handler = async |mut tx: Tx| -> StatusCode {
        effect(&mut tx, "paid").await.unwrap();
        std::panic::panic_any(7_u8)
    };
    let caught = CatchPanicLayer::custom(|panic: Box<dyn std::any::Any + Send>| {
        let payload = panic.downcast::<u8>().map(|payload| payload.to_string());
        (StatusCode::IM_A_TEAPOT, payload.unwrap_or_default()).into_response()
    });
    let service = serve(Router::new().route("/", post(handler).route_layer(layer(&db))).layer(caught)).await;
    for _ in 0..2 {
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (418, "7"));
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    is_sound(&db, &db).await;
}
