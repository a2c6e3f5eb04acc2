//! A replay is byte-exact.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tower_idempotency::Tx;

use crate::support::{database, effect, effects, layer, no_transaction_is_left, serve, states};

#[tokio::test]
async fn a_retry_gets_the_first_response_and_the_effect_stays_one() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        (StatusCode::CREATED, [("location", format!("/payments/{id}"))], format!("{{\"id\":{id}}}"))
    };
    let service = serve(Router::new().route("/", post(handler).route_layer(layer(&db)))).await;
    let first = service.post("/").key("k").json("{}").send().await;
    assert_eq!(first.status, 201, "{first:?}");
    let second = service.post("/").key("k").json("{}").send().await;
    second.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
    assert_eq!(states(&db).await, ["completed"]);
    no_transaction_is_left(&db).await;
}
