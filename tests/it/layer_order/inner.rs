//! What stands near: authentication, limits, decompression, timeout.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::Semaphore;

use super::*;
use crate::support::{Service, layer, layer_of};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn authentication_inside_sets_its_extension_too_late() {
    let db = database().await;
    let tenant = Tenant::extension(|user: &User| user.account.clone());
    let layer = layer_of(&db, tenant).operation("pay");
    let inside = post(create_payment).route_layer(from_fn(authenticate)).route_layer(layer.clone());
    let outside = post(create_payment).route_layer(layer).route_layer(from_fn(authenticate));
    let service = serve(Router::new().route("/inside", inside).route("/outside", outside)).await;
    let call =
        |path: &str| service.post(path).key("k").header("authorization", "Bearer a").json(r#"{"amount":1}"#);
    call("/inside").send().await.is_rejected(500, "extension-missing");
    assert_eq!(call("/outside").send().await.status, 201);
}

#[tokio::test]
async fn authentication_inside_is_not_asked_for_a_replay() {
    let db = database().await;
    let layer = |name: &str| layer_of(&db, Tenant::single()).operation(name);
    let inside = post(create_payment).route_layer(from_fn(authenticate)).route_layer(layer("inside"));
    let outside = post(create_payment).route_layer(layer("outside")).route_layer(from_fn(authenticate));
    let service = serve(Router::new().route("/inside", inside).route("/outside", outside)).await;
    for (path, status) in [("/inside", 201), ("/outside", 401)] {
        let call = || service.post(path).key("k").json(r#"{"amount":1}"#);
        assert_eq!(call().header("authorization", "Bearer a").send().await.status, 201);
        let stranger = call().send().await;
        assert_eq!((stranger.status.as_u16(), stranger.is_replay()), (status, status == 201), "{path}");
    }
}

async fn upload(mut tx: Tx, body: Bytes) -> String {
    effect(&mut tx, "uploaded").await.unwrap();
    body.len().to_string()
}

async fn send(service: &Service, path: &str, length: usize) -> crate::support::Answer {
    service.post(path).key("k").body(vec![b'x'; length]).send().await
}

#[tokio::test]
async fn a_body_limit_raised_inside_has_no_effect() {
    let db = database().await;
    let larger = DefaultBodyLimit::max(4 * MIB);
    let inside = post(upload).route_layer(larger).route_layer(layer(&db).operation("inside"));
    let outside = post(upload).route_layer(layer(&db).operation("outside")).route_layer(larger);
    let on_it = post(upload).route_layer(layer(&db).operation("on it").body_limit(4 * MIB));
    let routes = Router::new().route("/inside", inside).route("/outside", outside);
    let service = serve(routes.route("/on-it", on_it)).await;
    send(&service, "/inside", 3 * MIB).await.is_rejected(413, "body-too-large");
    for path in ["/outside", "/on-it"] {
        assert_eq!(send(&service, path, 3 * MIB).await.text(), (3 * MIB).to_string());
    }
}

#[tokio::test]
async fn a_body_limit_lowered_inside_refuses_only_after_the_claim() {
    let db = database().await;
    // What the layer settles, it has claimed.
    let claims = Arc::new(Semaphore::new(0));
    let claimed = Arc::clone(&claims);
    let counting = layer(&db).settle_with(move |response| {
        claimed.add_permits(1);
        tower_idempotency::Settlement::by_status(response.status())
    });
    let smaller = DefaultBodyLimit::max(10);
    let inside = post(upload).route_layer(smaller).route_layer(counting.clone().operation("inside"));
    let outside = post(upload).route_layer(counting.operation("outside")).route_layer(smaller);
    let service = serve(Router::new().route("/inside", inside).route("/outside", outside)).await;
    send(&service, "/outside", 11).await.is_rejected(413, "body-too-large");
    assert_eq!(claims.available_permits(), 0);
    assert_eq!(send(&service, "/inside", 11).await.status, 413);
    assert_eq!(claims.available_permits(), 1);
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
}

#[tokio::test]
async fn decompression_inside_makes_a_retry_compressed_differently_another_request() {
    let db = database().await;
    let unzip = RequestDecompressionLayer::new;
    let inside = post(create_payment).route_layer(unzip()).route_layer(layer(&db).operation("inside"));
    let outside = post(create_payment).route_layer(layer(&db).operation("outside")).route_layer(unzip());
    let service = serve(Router::new().route("/inside", inside).route("/outside", outside)).await;
    let json = br#"{"amount":1,"note":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}"#;
    for path in ["/inside", "/outside"] {
        let call = || service.post(path).key("k").header("content-type", "application/json");
        let zipped = |level| call().header("content-encoding", "gzip").body(gzip(json, level));
        let first = zipped(9).send().await;
        assert_eq!(first.status, 201);
        zipped(9).send().await.replays(&first);
        for other in [zipped(0), call().body(json.to_vec())] {
            let answer = other.send().await;
            if path == "/outside" {
                answer.replays(&first);
            } else {
                answer.is_rejected(422, "key-reused");
            }
        }
    }
}

#[tokio::test]
async fn a_request_body_limit_counts_what_is_on_the_wire_and_the_layer_what_becomes_of_it() {
    let db = database().await;
    let stack = ServiceBuilder::new()
        .layer(RequestBodyLimitLayer::new(10_000))
        .layer(RequestDecompressionLayer::new());
    let app = Router::new().route("/", post(upload).route_layer(layer(&db))).layer(stack);
    let service = serve(app).await;
    let zipped = |length: usize| {
        let body = gzip(&vec![b'x'; length], 9);
        assert!(body.len() < 10_000);
        service.post("/").key("k").header("content-encoding", "gzip").body(body)
    };
    zipped(3 * MIB).send().await.is_rejected(413, "body-too-large");
    assert_eq!(send(&service, "/", 10_001).await.status, 413);
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
    assert_eq!(zipped(MIB).send().await.text(), MIB.to_string());
}

#[tokio::test]
async fn a_body_that_does_not_decompress_is_the_clients_mistake() {
    let db = database().await;
    let app = Router::new().route("/", post(upload).route_layer(layer(&db)));
    let service = serve(app.layer(RequestDecompressionLayer::new())).await;
    let call = service.post("/").key("k").header("content-encoding", "gzip").body("not gzip");
    call.send().await.is_rejected(400, "body-incomplete");
    assert_eq!((records(&db).await, effects(&db, "uploaded").await), (0, 0));
}

#[tokio::test]
async fn a_timeout_outside_leaves_the_work_going_on_and_inside_undoes_it() {
    let db = database().await;
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let handler = async move |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        gate.acquire().await.unwrap().forget();
        (StatusCode::CREATED, id.to_string())
    };
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::REQUEST_TIMEOUT] {
        let before = effects(&db, "paid").await;
        let timeout = TimeoutLayer::with_status_code(status, Duration::from_millis(200));
        let layer = layer(&db).operation(format!("outside {status}"));
        let outside = post(handler.clone()).route_layer(layer.clone()).route_layer(timeout);
        let service = serve(Router::new().route("/", outside)).await;
        assert_eq!(service.post("/").key("k").send().await.status, status);
        service.post("/").key("k").send().await.is_rejected(409, "in-flight");
        open.add_permits(1);
        layer.drain().await;
        let retry = service.post("/").key("k").send().await;
        assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, true), "{retry:?}");
        assert_eq!(effects(&db, "paid").await, before + 1);

        let layer = layer.operation(format!("inside {status}"));
        let inside = post(handler.clone()).route_layer(timeout).route_layer(layer);
        let service = serve(Router::new().route("/", inside)).await;
        assert_eq!(service.post("/").key("k").send().await.status, status);
        assert_eq!(effects(&db, "paid").await, before + 1);
        open.add_permits(1);
        let retry = service.post("/").key("k").send().await;
        assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false), "{retry:?}");
        assert_eq!(effects(&db, "paid").await, before + 2);
    }
    no_transaction_is_left(&db).await;
}

#[tokio::test]
async fn a_timeout_inside_that_answers_with_another_4xx_is_recorded() {
    let db = database().await;
    let handler = async |mut tx: Tx| -> StatusCode {
        effect(&mut tx, "paid").await.unwrap();
        std::future::pending().await
    };
    let timeout = TimeoutLayer::with_status_code(StatusCode::BAD_REQUEST, Duration::from_millis(100));
    let route = post(handler).route_layer(timeout).route_layer(layer(&db));
    let service = serve(Router::new().route("/", route)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 400);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((states(&db).await, effects(&db, "paid").await), (vec!["failed".to_owned()], 0));
}
