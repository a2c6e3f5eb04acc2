//! What stands far outside: request id, trace, catch-panic, CORS, compression.

use axum::http::request::Parts;
use axum::routing::MethodRouter;
use tower_http::cors::AllowOrigin;

use super::*;
use crate::support::layer;

async fn paid(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::CREATED, format!("{id} {}", "x".repeat(500)))
}

fn at(path: &str, route: MethodRouter) -> Router {
    Router::new().route(path, route)
}

#[tokio::test]
async fn a_request_id_inside_is_missing_on_replays_and_refusals() {
    let db = database().await;
    let ids = || {
        ServiceBuilder::new()
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
    };
    let inside = at("/inside", post(paid).route_layer(ids()).route_layer(layer(&db).operation("inside")));
    let outside = at("/outside", post(paid).route_layer(layer(&db).operation("outside")).route_layer(ids()));
    let service = serve(inside.merge(outside)).await;
    for (path, has_id) in [("/inside", false), ("/outside", true)] {
        let first = service.post(path).key("k").send().await;
        let id = first.header("x-request-id").unwrap();
        let replay = service.post(path).key("k").send().await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("x-request-id").is_some(), has_id, "{path}");
        assert_ne!(replay.header("x-request-id"), Some(id));
        let refused = service.post(path).key("k").body("other").send().await;
        refused.is_rejected(422, "key-reused");
        assert_eq!(refused.header("x-request-id").is_some(), has_id, "{path}");
    }
}

#[tokio::test]
async fn a_trace_inside_sees_neither_replays_nor_refusals() {
    let logs = Logs::capture();
    let db = database().await;
    // Its log line is inside of the layer's span.
    let refusing = layer(&db).response_limit(0).settle_with(|_| {
        tracing::info!("settling");
        tower_idempotency::Settlement::Complete
    });
    let inside = at("/inside", post(paid).route_layer(trace()).route_layer(refusing.clone().operation("in")));
    let outside = at("/outside", post(paid).route_layer(refusing.operation("out")).route_layer(trace()));
    let service = serve(inside.merge(outside)).await;
    let mut seen = 0;
    for (path, traced) in [("/inside", 1), ("/outside", 3)] {
        assert_eq!(service.post(path).key("k").send().await.status, 201);
        service.post(path).key("k").send().await.is_rejected(410, "response-not-kept");
        service.post(path).send().await.is_rejected(400, "key-missing");
        let lines = logs.lines_with("finished processing request").len();
        assert_eq!(lines - seen, traced, "{path}: {}", logs.text());
        seen = lines;
    }
    let settling = logs.lines_with("settling");
    assert!(!settling[0].contains("request{"), "{settling:?}");
    let (request, own) = (settling[1].find("request{").unwrap(), settling[1].find("idempotency{").unwrap());
    assert!(request < own, "{settling:?}");
}

fn panicking(parts: &Parts) -> &'static str {
    assert!(!parts.headers.contains_key("x-panic"), "no tenant today");
    "t"
}

#[tokio::test]
async fn catch_panic_inside_does_not_see_a_panic_in_between() {
    let db = database().await;
    let layer = layer_of(&db, Tenant::from_fn(panicking)).operation("pay");
    let inside = at("/inside", post(paid).route_layer(CatchPanicLayer::new()).route_layer(layer.clone()));
    let outside = at("/outside", post(paid).route_layer(layer).route_layer(CatchPanicLayer::new()));
    let service = serve(inside.merge(outside)).await;
    let call = |path: &str| service.post(path).key("k").header("x-panic", "yes");
    assert!(call("/inside").try_send().await.is_err(), "the connection is closed");
    assert_eq!(call("/outside").send().await.status, 500);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
}

#[tokio::test]
async fn catch_panic_inside_has_its_answer_recorded() {
    let db = database().await;
    let answer = || CatchPanicLayer::custom(|_| StatusCode::UNPROCESSABLE_ENTITY.into_response());
    let handler = async |mut tx: Tx| -> StatusCode {
        let attempt = effect(&mut tx, "paid").await.unwrap();
        // The identity of a table counts rolled back inserts, too.
        assert!(attempt % 2 == 0, "only every second attempt succeeds");
        StatusCode::CREATED
    };
    let inside =
        at("/inside", post(handler).route_layer(answer()).route_layer(layer(&db).operation("inside")));
    let outside =
        at("/outside", post(handler).route_layer(layer(&db).operation("outside")).route_layer(answer()));
    let service = serve(inside.merge(outside)).await;

    assert_eq!(service.post("/outside").key("k").send().await.status, 422);
    assert_eq!(states(&db).await, Vec::<String>::new());
    assert_eq!(service.post("/outside").key("k").send().await.status, 201);

    let panicked = service.post("/inside").key("k").send().await;
    assert_eq!(panicked.status, 422);
    service.post("/inside").key("k").send().await.replays(&panicked);
    assert_eq!(states(&db).await, ["completed", "failed"]);
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn cors_inside_hides_refusals_and_replays_the_first_callers_origin() {
    let logs = Logs::capture();
    let db = database().await;
    let cors = || CorsLayer::new().allow_origin(AllowOrigin::mirror_request());
    let inside = at("/inside", post(paid).route_layer(cors()).route_layer(layer(&db).operation("inside")));
    let outside = at("/outside", post(paid).route_layer(layer(&db).operation("outside")).route_layer(cors()));
    let service = serve(inside.merge(outside)).await;
    for (path, to_refused, to_second) in
        [("/outside", Some("https://b.example"), "https://b.example"), ("/inside", None, "https://a.example")]
    {
        let call = |origin: &str| service.post(path).header("origin", origin);
        assert_eq!(logs.lines_with("access-control-allow-origin").len(), 0, "{}", logs.text());
        let first = call("https://a.example").key("k").send().await;
        assert_eq!(first.header("access-control-allow-origin"), Some("https://a.example"));
        let second = call("https://b.example").key("k").send().await;
        assert!(second.is_replay());
        assert_eq!(second.header("access-control-allow-origin"), Some(to_second), "{path}");
        let refused = call("https://b.example").send().await;
        refused.is_rejected(400, "key-missing");
        assert_eq!(refused.header("access-control-allow-origin"), to_refused, "{path}");
    }
    assert_eq!(
        service.post("/inside").header("origin", "https://a.example").key("k2").send().await.status,
        201
    );
    let warnings = logs.lines_with("access-control-allow-origin");
    assert!(warnings.len() == 1 && warnings[0].contains("WARN"), "{warnings:?}");
}

#[tokio::test]
async fn compression_inside_is_replayed_to_who_does_not_accept_it() {
    let logs = Logs::capture();
    let db = database().await;
    let zip = CompressionLayer::new;
    let inside = at("/inside", post(paid).route_layer(zip()).route_layer(layer(&db).operation("inside")));
    let outside = at("/outside", post(paid).route_layer(layer(&db).operation("outside")).route_layer(zip()));
    let service = serve(inside.merge(outside)).await;
    for (path, coding) in [("/outside", None), ("/inside", Some("gzip"))] {
        assert_eq!(logs.lines_with("content-encoding").len(), 0, "{}", logs.text());
        for key in ["k", "k2"] {
            let first = service.post(path).key(key).header("accept-encoding", "gzip").send().await;
            assert_eq!(first.header("content-encoding"), Some("gzip"));
        }
        let replay = service.post(path).key("k").send().await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("content-encoding"), coding, "{path}");
        assert_eq!(replay.body.starts_with(b"\x1f\x8b"), coding.is_some(), "{path}");
        assert_eq!(replay.body.ends_with(b"xxx"), coding.is_none(), "{path}");
    }
    let warnings = logs.lines_with("content-encoding");
    assert!(warnings.len() == 1 && warnings[0].contains("WARN"), "{warnings:?}");
}
