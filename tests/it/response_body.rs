//! A response whose body is not kept is sent whole, and never made a second time.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use devpg::TestDb;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{
    Runs, Service, Turnstile, database, effect, effects, eventually, is_sound, layer, records, serve_behind,
    states,
};

/// A handler that has an effect and answers with a response made anew for each run.
async fn answering<R>(
    layer: IdempotencyLayer,
    response: impl Fn(usize) -> R + Clone + Send + Sync + 'static,
) -> (Service, Runs)
where
    R: IntoResponse + 'static,
{
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        response(counted.next()).into_response()
    };
    (serve_behind(layer, handler).await, runs)
}

async fn a_retry_is_told_that_it_is_done(
    db: &TestDb,
    service: &Service,
    runs: &Runs,
    location: Option<&str>,
) {
    for _ in 0..2 {
        let retry = service.post("/").key("k").json("{}").send().await;
        retry.is_rejected(410, "response-not-kept");
        assert_eq!(retry.header("location"), location);
    }
    service.post("/").key("k").json("[]").send().await.is_rejected(422, "key-reused");
    assert_eq!((runs.count(), effects(db, "paid").await), (1, 1));
    assert_eq!(states(db).await, ["completed"]);
    is_sound(db, db).await;
}

#[tokio::test]
async fn a_body_at_the_limit_is_replayed_and_one_over_it_is_not() {
    let db = database().await;
    let (service, _) = answering(layer(&db).response_limit(8), |_| "8 bytes!").await;
    let first = service.post("/").key("fits").send().await;
    service.post("/").key("fits").send().await.replays(&first);

    let db = database().await;
    let (service, runs) = answering(layer(&db).response_limit(8), |_| {
        (StatusCode::CREATED, [(LOCATION, "/payments/1")], "nine bytes")
    })
    .await;
    let first = service.post("/").key("k").json("{}").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "nine bytes"));
    a_retry_is_told_that_it_is_done(&db, &service, &runs, Some("/payments/1")).await;
}

fn chunks(chunks: Vec<Result<&'static str, std::io::Error>>) -> Body {
    Body::from_stream(stream::iter(chunks))
}

#[tokio::test]
async fn a_body_of_unknown_length_over_the_limit_is_sent_whole_and_not_kept() {
    let db = database().await;
    let (service, runs) = answering(layer(&db).response_limit(8), |_| {
        chunks(vec![Ok("part one, "), Ok("part two, "), Ok("end")])
    })
    .await;
    let first = service.post("/").key("k").json("{}").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (200, "part one, part two, end"));
    a_retry_is_told_that_it_is_done(&db, &service, &runs, None).await;
}

#[tokio::test]
async fn a_body_that_is_too_slow_is_sent_whole_and_not_kept() {
    let db = database().await;
    let gate = Turnstile::default();
    let at = gate.clone();
    let (service, runs) = answering(layer(&db).response_timeout(Duration::from_millis(50)), move |_| {
        let rest = stream::once({
            let at = at.clone();
            async move {
                at.pass().await;
                Ok("and slow")
            }
        });
        Body::from_stream(stream::StreamExt::chain(stream::iter([Ok::<_, Infallible>("first, ")]), rest))
    })
    .await;
    let first = tokio::spawn(service.post("/").key("k").json("{}").send());
    eventually(std::panic::Location::caller(), async || match records(&db).await {
        1 => Ok(()),
        _ => Err("not committed while the body is slow".to_owned()),
    })
    .await;
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), first.text()), (200, "first, and slow"));
    a_retry_is_told_that_it_is_done(&db, &service, &runs, None).await;
}

#[tokio::test]
async fn an_event_stream_is_sent_as_it_comes_and_not_kept() {
    let db = database().await;
    let gate = Turnstile::default();
    let at = gate.clone();
    // Not because it is slow.
    let patient = layer(&db).response_timeout(Duration::from_secs(600));
    let (service, runs) = answering(patient, move |_| {
        let at = at.clone();
        let events = stream::unfold(0, move |n| {
            let at = at.clone();
            async move {
                at.pass().await;
                (n < 2).then(|| (Ok::<_, Infallible>("data: x\n\n"), n + 1))
            }
        });
        ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(events))
    })
    .await;
    let first = tokio::spawn(service.post("/").key("k").json("{}").send());
    // Committed before the first event.
    eventually(std::panic::Location::caller(), async || match records(&db).await {
        1 => Ok(()),
        _ => Err("not committed while the stream is open".to_owned()),
    })
    .await;
    (0..3).for_each(|_| gate.open());
    assert_eq!(first.await.unwrap().text(), "data: x\n\ndata: x\n\n");
    a_retry_is_told_that_it_is_done(&db, &service, &runs, None).await;
}

/// Through the layer itself: a client over HTTP/1.1 need not show trailers.
#[tokio::test]
async fn trailers_are_sent_and_not_kept() {
    let db = database().await;
    let (service, runs) = answering(layer(&db), |_| {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", "7".parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"data")), Frame::trailers(trailers)];
        Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))))
    })
    .await;
    let request = hyper::Request::post(format!("http://{}/", service.address))
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .body(Body::from("{}"))
        .unwrap();
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let first = client.request(request).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(first.trailers().unwrap()["x-checksum"], "7");
    assert_eq!(first.to_bytes(), "data");
    a_retry_is_told_that_it_is_done(&db, &service, &runs, None).await;
}

#[tokio::test]
async fn a_body_that_breaks_before_its_end_is_a_500_and_the_retry_executes() {
    for status in [StatusCode::CREATED, StatusCode::PAYMENT_REQUIRED] {
        let db = database().await;
        let (service, runs) = answering(layer(&db), move |run| match run {
            1 => (status, chunks(vec![Ok("half of "), Err(std::io::Error::other("the disk is gone"))])),
            _ => (StatusCode::CREATED, Body::from("whole")),
        })
        .await;
        let first = service.post("/").key("k").send().await;
        first.is_rejected(500, "response-broken");
        assert!(!first.text().contains("disk"), "{first:?}");
        assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
        let retry = service.post("/").key("k").send().await;
        assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "whole", false));
        assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
        is_sound(&db, &db).await;
    }
}

/// A refusal that cannot be read again would be worse than a second execution, which doubles nothing.
#[tokio::test]
async fn a_refusal_too_large_to_keep_is_sent_and_the_retry_executes() {
    let db = database().await;
    let (service, runs) =
        answering(layer(&db).response_limit(8), |_| (StatusCode::UNPROCESSABLE_ENTITY, "far too long")).await;
    for _ in 0..2 {
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.text(), answer.is_replay()), (422, "far too long", false));
    }
    assert_eq!((runs.count(), records(&db).await, effects(&db, "paid").await), (2, 0, 0));
    is_sound(&db, &db).await;
}
