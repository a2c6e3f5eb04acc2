//! The limit that applies to the handler applies to the layer.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::routing::{MethodRouter, post};
use futures_util::stream;
use tower_http::limit::RequestBodyLimitLayer;
use tower_idempotency::{Fingerprint, IdempotencyLayer, Tx};

use crate::support::{Answer, Service, database, effect, effects, layer, records, serve};

const MIB: usize = 1 << 20;

async fn upload(mut tx: Tx, body: Bytes) -> String {
    effect(&mut tx, "uploaded").await.unwrap();
    body.len().to_string()
}

fn route(layer: IdempotencyLayer) -> MethodRouter {
    post(upload).route_layer(layer)
}

/// With its length declared.
async fn declared(service: &Service, length: usize) -> Answer {
    service.post("/").key(&format!("d{length}")).body(vec![b'x'; length]).send().await
}

/// In chunks.
async fn chunked(service: &Service, length: usize) -> Answer {
    let chunks: Vec<_> = vec![b'x'; length].chunks(60_000).map(Bytes::copy_from_slice).collect();
    let body = Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)));
    // A server that refuses a body may close before it has read it.
    service.post("/").key(&format!("c{length}")).body(body).send().await
}

#[tokio::test]
async fn two_mebibytes_are_the_default() {
    let db = database().await;
    let service = serve(Router::new().route("/", route(layer(&db)))).await;
    declared(&service, 2 * MIB + 1).await.is_rejected(413, "body-too-large");
    chunked(&service, 2 * MIB + 1).await.is_rejected(413, "body-too-large");
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
    assert_eq!(declared(&service, 2 * MIB).await.text(), "2097152");
    assert_eq!(chunked(&service, 2 * MIB).await.text(), "2097152");
}

#[tokio::test]
async fn a_default_body_limit_outside_counts() {
    let db = database().await;
    for (limit, name) in [(10, "smaller"), (3 * MIB, "larger")] {
        let route = route(layer(&db).operation(name));
        let app = Router::new().route("/", route).layer(DefaultBodyLimit::max(limit));
        let service = serve(app).await;
        let before = records(&db).await;
        let refused = declared(&service, limit + 1).await;
        refused.is_rejected(413, "body-too-large");
        assert_eq!(refused.json()["retry"], "never");
        chunked(&service, limit + 1).await.is_rejected(413, "body-too-large");
        assert_eq!(records(&db).await, before, "{name}");
        assert_eq!(declared(&service, limit).await.text(), limit.to_string());
        assert_eq!(chunked(&service, limit).await.text(), limit.to_string());
    }
    let route = route(layer(&db).operation("none"));
    let service = serve(Router::new().route("/", route).layer(DefaultBodyLimit::disable())).await;
    assert_eq!(declared(&service, 3 * MIB).await.text(), (3 * MIB).to_string());
}

#[tokio::test]
async fn a_request_body_limit_outside_counts() {
    let db = database().await;
    let app = Router::new().route("/", route(layer(&db)));
    let service = serve(app.layer(RequestBodyLimitLayer::new(10))).await;
    // It answers itself where the length is declared; else the layer meets its error.
    let refused = declared(&service, 11).await;
    assert_eq!((refused.status.as_u16(), refused.text()), (413, "length limit exceeded"));
    chunked(&service, 11).await.is_rejected(413, "body-too-large");
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
    assert_eq!(declared(&service, 10).await.text(), "10");
    assert_eq!(chunked(&service, 10).await.text(), "10");
}

#[tokio::test]
async fn body_limit_sets_the_layers_and_the_handlers() {
    let db = database().await;
    for (limit, name) in [(10, "smaller"), (3 * MIB, "larger")] {
        let app = Router::new().route("/", route(layer(&db).operation(name).body_limit(limit)));
        // It wins over one outside.
        let service = serve(app.layer(DefaultBodyLimit::max(100))).await;
        let before = records(&db).await;
        declared(&service, limit + 1).await.is_rejected(413, "body-too-large");
        chunked(&service, limit + 1).await.is_rejected(413, "body-too-large");
        assert_eq!(records(&db).await, before, "{name}");
        assert_eq!(declared(&service, limit).await.text(), limit.to_string());
        assert_eq!(chunked(&service, limit).await.text(), limit.to_string());
    }
}

#[tokio::test]
async fn a_streamed_upload_over_the_limit_is_refused_by_the_handler_and_not_recorded() {
    let db = database().await;
    let layer = layer(&db).fingerprint(Fingerprint::without_body()).body_limit(10);
    let service = serve(Router::new().route("/", route(layer))).await;
    for refused in [declared(&service, 11).await, chunked(&service, 11).await] {
        assert_eq!((refused.status.as_u16(), refused.is_replay()), (413, false), "{refused:?}");
    }
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
    assert_eq!(chunked(&service, 10).await.text(), "10");
}
