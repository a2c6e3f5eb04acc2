//! A replay is byte-exact.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use tokio::task::JoinSet;
use tower_idempotency::{Resource, Tx};

use crate::support::{
    Gate, RawAnswer, Service, database, effect, effects, layer, no_transaction_is_left, paid, payment,
    post_raw, serve, serve_behind, states,
};

#[tokio::test]
async fn a_retry_gets_the_first_response_and_the_effect_stays_one() {
    let db = database().await;
    let service = serve(payment(&Gate::open(), layer(&db))).await;
    let first = service.post("/").key("k").json("{}").send().await;
    assert_eq!(first.status, 201, "{first:?}");
    let second = service.post("/").key("k").json("{}").send().await;
    second.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
    assert_eq!(states(&db).await, ["completed"]);
    no_transaction_is_left(&db).await;
}

#[tokio::test]
async fn status_headers_and_body_are_the_same_bytes_on_the_wire() {
    let db = database().await;
    let mut router = Router::new();
    for (path, _, response) in responses() {
        let handler = async move |mut tx: Tx| {
            effect(&mut tx, path).await.unwrap();
            response()
        };
        router = router.route(path, post(handler));
    }
    let service = serve(router.route_layer(layer(&db))).await;

    for (path, body, response) in responses() {
        let first = exchange(&service, path, path).await;
        let status = response().status().as_u16().to_string();
        assert!(first.0.status.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{path}: {first:?}");
        assert_eq!(first.0.body, body, "{path}");
        assert!(!first.1, "{path}: the first one is a replay");
        for _ in 0..2 {
            let replay = exchange(&service, path, path).await;
            assert!(replay.1, "{path}: not a replay");
            assert_eq!(replay.0, first.0, "{path}");
        }
        let other_key = exchange(&service, path, &format!("{path}-again")).await;
        assert_eq!(other_key, first, "{path}: a second execution differs, so that the test proves nothing");
    }
}

/// The answer without what belongs to one transfer, and whether it says that it is a replay.
async fn exchange(service: &Service, path: &str, key: &str) -> (RawAnswer, bool) {
    let key = format!("idempotency-key: {key}");
    let mut answer = post_raw(service.address, path, &[key.as_bytes()], b"{}").await;
    assert!(answer.take("date"));
    let is_replay = answer.take("idempotent-replayed");
    (answer, is_replay)
}

type Case = (&'static str, &'static [u8], fn() -> Response);

/// Responses, each with the body that must arrive.
fn responses() -> Vec<Case> {
    vec![
        ("/created", b"{\"id\":7}", || {
            let lines = [("location", "/payments/7"), ("etag", "\"v1\"")];
            (StatusCode::CREATED, lines, Json(serde_json::json!({"id": 7}))).into_response()
        }),
        ("/order-and-repeats", b"x", || {
            let lines =
                [("x-b", "1"), ("x-a", "2"), ("link", "</1>; rel=\"next\""), ("x-c", ""), ("a-first", "3")];
            let repeats = [("link", "</2>; rel=\"next\""), ("x-a", "2"), ("x-b", "0")];
            let lines =
                lines.into_iter().chain(repeats).map(|(name, value)| (HeaderName::from_static(name), value));
            let mut response = "x".into_response();
            for (name, value) in lines {
                response.headers_mut().append(name, value.parse().unwrap());
            }
            response
        }),
        ("/opaque-header", b"", || {
            let value = axum::http::HeaderValue::from_bytes(b"caf\xe9 \xff\xfe").unwrap();
            ([("x-opaque", value)], "").into_response()
        }),
        ("/no-content", b"", || StatusCode::NO_CONTENT.into_response()),
        ("/no-content-with-location", b"", || (StatusCode::NO_CONTENT, [("location", "/x")]).into_response()),
        ("/see-other", b"", || (StatusCode::SEE_OTHER, [("location", "/payments/7?a=b#c")]).into_response()),
        ("/accepted", b"later", || (StatusCode::ACCEPTED, "later").into_response()),
        ("/empty", b"", || StatusCode::OK.into_response()),
        ("/empty-text", b"", || "".into_response()),
        ("/binary", b"\xff\xd8\x00", || {
            ([("content-type", "image/jpeg")], &b"\xff\xd8\x00"[..]).into_response()
        }),
        ("/null", b"null", || Json(()).into_response()),
        ("/zero", b"0", || Json(0).into_response()),
        ("/white-space", b" \r\n\r\n ", || " \r\n\r\n ".into_response()),
        ("/frames", b"one two", || {
            let frames = ["one", "", " ", "two"]
                .map(|frame| Ok::<_, Infallible>(Bytes::from_static(frame.as_bytes())));
            Body::from_stream(stream::iter(frames)).into_response()
        }),
        ("/odd-status", b"", || StatusCode::from_u16(299).unwrap().into_response()),
        ("/refused", b"{\"error\":\"declined\"}", || {
            let body = Json(serde_json::json!({"error": "declined"}));
            (StatusCode::PAYMENT_REQUIRED, [("x-b", "1"), ("x-a", "2")], body).into_response()
        }),
    ]
}

#[tokio::test]
async fn a_large_body_is_replayed_whole() {
    let db = database().await;
    let large: Vec<u8> = (0..1_048_576_u32).map(|n| (n % 251) as u8).collect();
    let body = Bytes::from(large.clone());
    let handler = move || std::future::ready(body.clone());
    let service = serve_behind(layer(&db), handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.body, large);
    service.post("/").key("k").send().await.replays(&first);
}

#[tokio::test]
async fn a_replay_is_marked_and_the_mark_can_be_renamed() {
    let db = database().await;
    let layer = layer(&db).replayed_header(HeaderName::from_static("x-replay"));
    let service = serve(payment(&Gate::open(), layer)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.header("x-replay"), None);
    let second = service.post("/").key("k").send().await;
    assert_eq!(second.header("x-replay"), Some("true"));
    assert_eq!(second.header("idempotent-replayed"), None);
    assert_eq!(second.body, first.body);
}

#[tokio::test]
async fn execution_and_replay_need_one_connection() {
    let db = database().await;
    let pool = db.pool(1).await;
    let service = serve(payment(&Gate::open(), layer(&pool).acquire_timeout(Duration::from_secs(2)))).await;
    for key in ["a", "b"] {
        let first = service.post("/").key(key).send().await;
        assert_eq!(first.status, 201, "{first:?}");
        service.post("/").key(key).send().await.replays(&first);
    }
    // Every path that ends before the handler gives it back, too.
    service.post("/").key("a").json("{}").send().await.is_rejected(422, "key-reused");
    let free =
        tokio::time::timeout(Duration::from_secs(2), pool.acquire()).await.expect("no connection is free");
    drop(free.unwrap());
}

/// The record's connection is home before the resolver asks for one.
#[tokio::test]
async fn a_resolver_that_uses_the_pool_finds_the_only_connection() {
    let db = database().await;
    let pool = db.pool(1).await;
    let handler = async |mut tx: Tx| {
        let paid = paid(&mut tx).await;
        (Resource::new("payment", "1"), paid)
    };
    let renderer = pool.clone();
    let layer = layer(&pool).resolve_with(move |resource, _| {
        let pool = renderer.clone();
        async move {
            let id: i64 = resource.id().parse().unwrap();
            let name: String = sqlx::query_scalar("select name from effect where id = $1")
                .bind(id)
                .fetch_one(&pool)
                .await
                .unwrap();
            format!("{} {id} is {name}", resource.kind())
        }
    });
    let service = serve_behind(layer, handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "{\"id\":1}"));
    let second = service.post("/").key("k").send().await;
    assert!(second.is_replay());
    assert_eq!((second.status.as_u16(), second.text()), (201, "payment 1 is paid"));
    assert_eq!(second.header("location"), Some("/payments/1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_retries_of_a_settled_key_at_once_all_replay() {
    let db = database().await;
    for connections in [1, 2, 5] {
        let gate = Gate::open();
        let layer = layer(&db.pool(connections).await).acquire_timeout(Duration::from_secs(60));
        let service = serve(payment(&gate, layer)).await;
        let key = format!("k{connections}");
        let first = service.post("/").key(&key).json("{}").send().await;
        assert_eq!(first.status, 201, "{first:?}");
        let retries: JoinSet<_> = (0..100).map(|_| service.post("/").key(&key).json("{}").send()).collect();
        for retry in retries.join_all().await {
            retry.replays(&first);
        }
        assert_eq!(gate.runs(), 1);
    }
    no_transaction_is_left(&db).await;
}

#[tokio::test]
async fn the_header_that_marks_a_replay_can_have_another_name() {
    let db = database().await;
    let named = layer(&db).replayed_header(HeaderName::from_static("x-replayed"));
    let service = serve_behind(named, async || "ok").await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.header("x-replayed"), first.header("idempotent-replayed")), (None, None));
    let second = service.post("/").key("k").send().await;
    assert_eq!((second.header("x-replayed"), second.header("idempotent-replayed")), (Some("true"), None));
}
