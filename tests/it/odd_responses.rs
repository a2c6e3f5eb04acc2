//! Responses that no sane handler makes: never a hang, a poisoned pool or a wrong replay.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body::Frame;
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{IdempotencyLayer, Settlement, Tx};

use crate::support::{
    Runs, Service, database, effect, effects, eventually, is_sound, layer, records, serve, states,
};

/// Always ready, and never at its end.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::new()))))
    }
}

struct Panics;

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("a body of the test");
    }
}

/// The handler has an effect, then the first run answers in this way.
async fn once(
    configured: IdempotencyLayer,
    first: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> (Service, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() == 1 {
            return first();
        }
        (StatusCode::CREATED, "whole").into_response()
    };
    let router =
        Router::new().route("/", post(handler).route_layer(configured)).layer(CatchPanicLayer::new());
    (serve(router).await, runs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_empty_frames_without_end_is_given_up() {
    let db = database().await;
    let short = layer(&db).response_timeout(Duration::from_millis(100));
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        Response::new(Body::new(Endless))
    };
    let app = Router::new().route("/", post(handler).route_layer(short));
    let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let answer = tokio::spawn(app.oneshot(request));
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    assert_eq!(answer.expect("it hangs").unwrap().unwrap().status(), 200);
    assert_eq!(states(&db).await, ["completed"]);
}

#[tokio::test]
async fn a_panic_in_what_comes_after_the_handler_undoes_and_frees_the_key() {
    let db = database().await;
    type First = fn() -> Response;
    let cases: [(&str, IdempotencyLayer, First); 3] = [
        ("body", layer(&db), || Response::new(Body::new(Panics))),
        ("refused body", layer(&db), || {
            (StatusCode::UNPROCESSABLE_ENTITY, Body::new(Panics)).into_response()
        }),
        (
            "settle_with",
            layer(&db).settle_with(|response| {
                assert!(response.headers().get("x-panic").is_none(), "a rule of the test");
                Settlement::by_status(response.status())
            }),
            || [("x-panic", "1")].into_response(),
        ),
    ];
    for (case, configured, first) in cases {
        let before = effects(&db, "paid").await;
        let (service, runs) = once(configured.operation(case), first).await;
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), effects(&db, "paid").await), (500, before), "{case}: {answer:?}");
        eventually(std::panic::Location::caller(), async || {
            let retry = service.post("/").key("k").send().await;
            if retry.status == 201 { Ok(()) } else { Err(format!("{case}: {retry:?}")) }
        })
        .await;
        assert_eq!((runs.count(), effects(&db, "paid").await), (2, before + 1), "{case}");
        is_sound(&db, &db).await;
    }
}

#[tokio::test]
async fn a_refusal_with_more_headers_than_can_be_kept_is_sent_and_the_retry_executes() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        counted.next();
        effect(&mut tx, "paid").await.unwrap();
        let mut response = (StatusCode::UNPROCESSABLE_ENTITY, "no").into_response();
        for _ in 0..300 {
            response.headers_mut().append("x-big", "x".repeat(1000).parse().unwrap());
        }
        response
    };
    let app = Router::new().route("/", post(handler).route_layer(layer(&db)));
    for _ in 0..2 {
        let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 422, "{answer:?}");
        assert!(!answer.headers().contains_key("idempotent-replayed"));
    }
    assert_eq!((runs.count(), records(&db).await, effects(&db, "paid").await), (2, 0, 0));
}

#[tokio::test]
async fn as_many_lines_as_fit_are_replayed() {
    let db = database().await;
    let handler = async || {
        let mut response = StatusCode::CREATED.into_response();
        for n in 0..30_000 {
            response.headers_mut().append("a", (n % 10).to_string().parse().unwrap());
        }
        response
    };
    let app = Router::new().route("/", post(handler).route_layer(layer(&db)));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
        answers.push(app.clone().oneshot(request).await.unwrap());
    }
    let lines = |n: usize| answers[n].headers().get_all("a").iter().cloned().collect::<Vec<_>>();
    assert_eq!(lines(0).len(), 30_000);
    assert!(lines(0) == lines(1));
    assert!(answers[1].headers().contains_key("idempotent-replayed"));
}
