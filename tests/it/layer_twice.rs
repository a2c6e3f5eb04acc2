//! Two layers on one route would each claim the key, and refuse the other for ever.

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use tower_idempotency::{Tx, TxHandle};

use crate::support::{Logs, Runs, database, effect, effects, is_sound, layer, records, serve};

#[tokio::test]
async fn two_layers_on_one_route_are_a_500_that_the_log_explains() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |_: Tx| {
        counted.next();
        StatusCode::CREATED
    };
    let log = Logs::capture();
    let route = post(handler).route_layer(layer(&db)).route_layer(layer(&db).operation("another"));
    let service = serve(Router::new().route("/", route)).await;
    for _ in 0..2 {
        service.post("/").key("k").send().await.is_rejected(500, "layer-twice");
    }
    log.contain("two idempotency layers stand on one route");
    assert_eq!((runs.count(), records(&db).await), (0, 0));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_layer_inside_of_a_lent_transaction_is_a_500_too() {
    let db = database().await;
    let handle = TxHandle::new(db.begin().await.unwrap());
    let route = post(async |_: Tx| StatusCode::CREATED).route_layer(layer(&db)).layer(Extension(handle));
    let service = serve(Router::new().route("/", route)).await;
    service.post("/").key("k").send().await.is_rejected(500, "layer-twice");
    drop(service);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn two_layers_are_a_500_also_without_a_key() {
    let db = database().await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let optional = layer(&db).optional();
    let route = post(handler).route_layer(optional.clone()).route_layer(optional);
    let service = serve(Router::new().route("/", route)).await;
    service.post("/").send().await.is_rejected(500, "layer-twice");
    assert_eq!(effects(&db, "paid").await, 0);
    is_sound(&db, &db).await;
}
