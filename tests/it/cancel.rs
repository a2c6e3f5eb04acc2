//! A request's future can be dropped at any point.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use tower::ServiceExt as _;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{database, effect, effects, is_sound, layer};

fn app(layer: &IdempotencyLayer) -> Router {
    let handler = async |mut tx: Tx, body: String| {
        effect(&mut tx, &body).await.unwrap();
        tokio::task::yield_now().await;
        effect(&mut tx, &format!("{body}, second")).await.unwrap();
        (StatusCode::CREATED, body)
    };
    Router::new().route("/", post(handler).route_layer(layer.clone()))
}

fn request(key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::post("/").body(Body::from(body.to_owned())).unwrap();
    if let Some(key) = key {
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    }
    request
}

/// Polls a future at most so many times, then drops it. `None` if it was dropped.
async fn polled<T>(future: impl Future<Output = T>, mut polls: usize) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_request_dropped_at_any_poll_leaves_a_sound_pool_and_its_retry_gives_one_effect() {
    let db = database().await;
    let pool = db.pool(3).await;
    let layer = layer(&pool);
    // How many polls a request takes is the scheduler's affair: go over the range several times.
    let mut dropped = 0;
    for (round, polls) in (0..4).flat_map(|round| (0..12).map(move |polls| (round, polls))) {
        let name = format!("dropped-after-{polls}-{round}");
        let done = polled(app(&layer).oneshot(request(Some(&name), &name)), polls).await;
        dropped += usize::from(done.is_none());
        layer.drain().await;
        is_sound(&db, &pool).await;
        let retry = app(&layer).oneshot(request(Some(&name), &name)).await.unwrap();
        assert_eq!(retry.status(), 201, "after {polls} polls");
        assert_eq!(effects(&db, &name).await, 1, "after {polls} polls");
        assert_eq!(effects(&db, &format!("{name}, second")).await, 1, "after {polls} polls");
    }
    assert!(dropped > 4, "only {dropped} were dropped: nothing was tried");
}

#[tokio::test]
async fn a_request_without_a_key_dropped_at_any_poll_leaves_a_sound_pool() {
    let db = database().await;
    let pool = db.pool(3).await;
    let layer = layer(&pool).optional();
    for (round, polls) in (0..4).flat_map(|round| (0..12).map(move |polls| (round, polls))) {
        let name = format!("dropped-after-{polls}-{round}");
        let done = polled(app(&layer).oneshot(request(None, &name)), polls).await;
        is_sound(&db, &pool).await;
        let (first, second) = (effects(&db, &name).await, effects(&db, &format!("{name}, second")).await);
        assert_eq!(first, second, "half of the effects after {polls} polls");
        if done.is_some() {
            assert_eq!(first, 1);
        }
    }
}
