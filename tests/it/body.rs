//! The request's body arrives untouched, or nothing happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use futures_util::stream;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tower::ServiceExt as _;
use tower_idempotency::{Fingerprint, Tx};

use crate::support::{
    Raw, database, effect, effects, layer, no_transaction_is_left, records, serve, serve_behind, states,
};

/// Answers with the body's length, its digest and its trailers.
async fn describe(body: Body) -> String {
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().map_or(String::new(), |trailers| format!("{trailers:?}"));
    let bytes = collected.to_bytes();
    format!("{} {} {trailers}", bytes.len(), fnv(&bytes))
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn binary(length: usize) -> Bytes {
    (0..length).map(|at| u8::try_from(at * 7 % 251 + at / 251 % 5).unwrap()).collect()
}

#[tokio::test]
async fn the_body_arrives_untouched_in_one_frame_or_a_thousand() {
    let db = database().await;
    let service = serve_behind(layer(&db), describe).await;
    for length in [0, 1, 1_000, 1_000_000] {
        let bytes = binary(length);
        let expected = format!("{length} {} ", fnv(&bytes));
        let call = || service.post("/").header("content-type", "application/octet-stream");
        let whole = call().key(&format!("whole {length}").replace(' ', "-")).body(bytes.clone()).send().await;
        assert_eq!(whole.text(), expected);
        let frames: Vec<_> = (0..1_000)
            .map(|at| bytes.slice(at * length / 1_000..(at + 1) * length / 1_000))
            .map(Ok::<_, std::io::Error>)
            .collect();
        let stream = || {
            Body::from_stream(stream::iter(
                frames
                    .iter()
                    .map(|f| Ok::<_, std::io::Error>(f.as_ref().unwrap().clone()))
                    .collect::<Vec<_>>(),
            ))
        };
        let split = call().key(&format!("split-{length}")).body(stream()).send().await;
        assert_eq!(split.text(), expected);
        // However it is split, it is the same request.
        let other = call().key(&format!("whole-{length}")).body(stream()).send().await;
        assert!(other.is_replay(), "{other:?}");
    }
}

#[tokio::test]
async fn chunks_and_trailers_arrive() {
    let db = database().await;
    let service = serve_behind(layer(&db), describe).await;
    for (key, chunks) in [("none", 0), ("one", 1), ("thousand", 1_000)] {
        let mut raw = Raw::connect(service.address).await;
        raw.write(format!(
            "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nconnection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
        ))
        .await;
        let mut sent = Vec::new();
        for at in 0..chunks {
            let chunk = binary(at + 1);
            raw.chunk(&chunk).await;
            sent.extend(chunk);
        }
        raw.write("0\r\nx-sum: abc\r\n\r\n").await;
        let answer = raw.rest().await;
        let expected = format!("{} {} {{\"x-sum\": \"abc\"}}", sent.len(), fnv(&sent));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&expected), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_executes_and_stores_nothing() {
    let db = database().await;
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let handler = async move |mut tx: Tx, _: Body| {
        counter.fetch_add(1, Ordering::SeqCst);
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let app = Router::new().route("/", post(handler).route_layer(layer(&db)));
    let service = serve(app.clone()).await;
    let head = "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n";
    for (rest, why) in [
        ("content-length: 100\r\n\r\nhalf", "its length was declared"),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "its last chunk is missing"),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n", "a chunk is malformed"),
    ] {
        let mut raw = Raw::connect(service.address).await;
        raw.write(format!("{head}{rest}")).await;
        raw.end().await;
        let answer = raw.rest().await;
        let told = answer.starts_with("HTTP/1.1 400") && answer.contains("body-incomplete");
        assert!(told || answer.is_empty(), "{why}: {answer}");
    }
    // Where the body fails and the connection is still there, the client is told what to do.
    let frames = [Ok(Bytes::from("half")), Err(std::io::Error::other("broken"))];
    let request = Request::post("/").header("idempotency-key", "k");
    let request = request.body(Body::from_stream(stream::iter(frames))).unwrap();
    let answer = app.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 400);
    let problem = answer.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!(problem["type"], "urn:tower-idempotency:body-incomplete");
    assert_eq!(problem["retry"], "same-key");

    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    no_transaction_is_left(&db).await;
    assert_eq!(service.post("/").key("k").body("half and half").send().await.status, 201);
}

#[tokio::test]
async fn without_body_the_handler_sees_the_first_frame_before_the_last_is_sent() {
    let db = database().await;
    let (seen, mut first) = mpsc::channel(1);
    let handler = async move |mut tx: Tx, mut body: Body| {
        effect(&mut tx, "uploaded").await.unwrap();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            length += data.len();
            let _ = seen.send(data).await;
        }
        (StatusCode::CREATED, length.to_string())
    };
    let layer = layer(&db).fingerprint(Fingerprint::without_body());
    let service = serve_behind(layer, handler).await;
    let (frames, body) = mpsc::channel::<Bytes>(1);
    let body = stream::unfold(body, async |mut body| {
        body.recv().await.map(|frame| (Ok::<_, std::io::Error>(frame), body))
    });
    let upload = service.post("/").key("k").body(Body::from_stream(body));
    let upload = tokio::spawn(upload.send());
    frames.send(Bytes::from("first")).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(10), first.recv()).await;
    assert_eq!(seen.expect("the handler waits for the whole body").unwrap(), "first");
    frames.send(Bytes::from(" last")).await.unwrap();
    assert_eq!(first.recv().await.unwrap(), " last");
    drop(frames);
    let uploaded = upload.await.unwrap();
    assert_eq!((uploaded.status.as_u16(), uploaded.text()), (201, "10"));
    // The body is no part of the request's identity then.
    service.post("/").key("k").body("another").send().await.replays(&uploaded);
    assert_eq!(effects(&db, "uploaded").await, 1);
}

#[tokio::test]
async fn an_upload_that_streams_and_breaks_off_keeps_nothing() {
    let db = database().await;
    // axum's own extractor answers a broken body with 400.
    let handler = async |mut tx: Tx, body: Result<Bytes, axum::extract::rejection::BytesRejection>| {
        effect(&mut tx, "uploaded").await.unwrap();
        body.map(|body| body.len().to_string())
    };
    let layer = layer(&db).fingerprint(Fingerprint::without_body());
    let app = Router::new().route("/", post(handler).route_layer(layer.clone()));
    let frames = [Ok(Bytes::from("half")), Err(std::io::Error::other("broken"))];
    let request = Request::post("/").header("idempotency-key", "k");
    let request = request.body(Body::from_stream(stream::iter(frames))).unwrap();
    assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 400);
    assert_eq!((states(&db).await, effects(&db, "uploaded").await), (vec![], 0));

    let service = serve(app).await;
    let mut raw = Raw::connect(service.address).await;
    raw.write("POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 100\r\n\r\nhalf").await;
    raw.end().await;
    drop(raw.rest().await);
    layer.drain().await;
    // The client's retry is not answered by what became of half an upload.
    let whole = service.post("/").key("k").body("half and half").send().await;
    assert_eq!((whole.status.as_u16(), whole.text(), whole.is_replay()), (200, "13", false));
    assert_eq!(effects(&db, "uploaded").await, 1);
}
