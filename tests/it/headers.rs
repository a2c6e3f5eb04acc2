//! Which of a response's headers a replay has.

use axum::http::header::{
    AGE, CACHE_CONTROL, CONNECTION, COOKIE, ETAG, LOCATION, RETRY_AFTER, SET_COOKIE, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::AppendHeaders;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{Answer, database, effect, layer, serve_behind};

async fn first_and_retry(layer: IdempotencyLayer) -> (Answer, Answer) {
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        let headers = AppendHeaders([
            (LOCATION, "/payments/1"),
            (VARY, "accept"),
            (SET_COOKIE, "session=secret"),
            (ETAG, "\"1\""),
            (VARY, "origin"),
            (WWW_AUTHENTICATE, "Bearer"),
            (RETRY_AFTER, "7"),
            (AGE, "3"),
            (CACHE_CONTROL, "no-store"),
            (CONNECTION, "x-hop"),
            (HeaderName::from_static("x-hop"), "1"),
            (HeaderName::from_static("x-request-id"), "r"),
            (HeaderName::from_static("traceparent"), "t"),
        ]);
        (StatusCode::CREATED, headers, "paid")
    };
    let service = serve_behind(layer, handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status, &retry.body), (first.status, &first.body));
    (first, retry)
}

fn lines(answer: &Answer) -> Vec<(&str, &str)> {
    let lines =
        answer.headers.iter().filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()));
    lines.map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
}

#[tokio::test]
async fn what_belongs_to_one_transfer_one_caller_or_one_moment_is_sent_once() {
    let db = database().await;
    let (first, retry) = first_and_retry(layer(&db)).await;
    for name in
        ["set-cookie", "www-authenticate", "retry-after", "age", "x-hop", "x-request-id", "traceparent"]
    {
        assert!(first.header(name).is_some(), "{name} was sent the first time");
        assert_eq!(retry.header(name), None, "{name}");
    }
    let kept = [
        ("content-type", "text/plain; charset=utf-8"),
        ("location", "/payments/1"),
        ("vary", "accept"),
        ("vary", "origin"),
        ("etag", "\"1\""),
        ("cache-control", "no-store"),
        ("idempotent-replayed", "true"),
    ];
    assert_eq!(lines(&retry), kept);
}

#[tokio::test]
async fn a_service_keeps_and_omits_what_it_wants() {
    let db = database().await;
    let layer = layer(&db)
        .keep_header(SET_COOKIE)
        .omit_header(ETAG)
        .keep_header(COOKIE)
        .replayed_header(HeaderName::from_static("x-replay"));
    let (_, retry) = first_and_retry(layer).await;
    assert_eq!((retry.header("set-cookie"), retry.header("etag")), (Some("session=secret"), None));
    assert_eq!((retry.header("x-replay"), retry.header("idempotent-replayed")), (Some("true"), None));
}
