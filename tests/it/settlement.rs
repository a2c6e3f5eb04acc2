//! What becomes of effects and record is decided by the response.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleError;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tower::Layer as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{IdempotencyLayer, Settlement, Tx, TxHandle};

use crate::support::{
    Runs, Service, database, effect, effects, is_sound, layer, records, serve, serve_behind, states,
};

/// Has an effect, and answers with the status of the path; the body tells the run.
async fn answer(State(runs): State<Runs>, Path(status): Path<u16>, mut tx: Tx) -> impl IntoResponse {
    effect(&mut tx, "paid").await.unwrap();
    (StatusCode::from_u16(status).unwrap(), format!("run {}", runs.next()))
}

async fn answering(layer: IdempotencyLayer) -> (Service, Runs) {
    let runs = Runs::default();
    let route = post(answer).route_layer(layer);
    (serve(Router::new().route("/{status}", route).with_state(runs.clone())).await, runs)
}

const RELEASING: [u16; 14] = [401, 403, 405, 407, 408, 409, 413, 415, 421, 425, 426, 428, 429, 431];

#[tokio::test]
async fn a_success_keeps_its_effects_and_is_replayed() {
    for status in [200, 201, 202, 204, 205, 301, 302, 303, 307, 308] {
        let db = database().await;
        let (service, runs) = answering(layer(&db)).await;
        let path = format!("/{status}");
        let first = service.post(&path).key("k").send().await;
        assert_eq!(first.status, status);
        service.post(&path).key("k").send().await.replays(&first);
        assert_eq!((runs.count(), effects(&db, "paid").await), (1, 1), "{status}");
        assert_eq!(states(&db).await, ["completed"], "{status}");
        is_sound(&db, &db).await;
    }
}

#[tokio::test]
async fn a_refusal_of_the_handlers_own_is_recorded_and_its_effects_are_undone() {
    for status in [400, 402, 404, 406, 410, 411, 412, 414, 416, 417, 418, 422, 423, 424, 451, 499] {
        let db = database().await;
        let (service, runs) = answering(layer(&db)).await;
        let path = format!("/{status}");
        let first = service.post(&path).key("k").send().await;
        assert_eq!((first.status.as_u16(), first.text()), (status, "run 1"));
        service.post(&path).key("k").send().await.replays(&first);
        assert_eq!((runs.count(), effects(&db, "paid").await), (1, 0), "{status}");
        assert_eq!(states(&db).await, ["failed"], "{status}");
        is_sound(&db, &db).await;
    }
}

#[tokio::test]
async fn a_refusal_of_the_moment_and_a_fault_keep_nothing_and_free_the_key_at_once() {
    let faults = [500, 501, 502, 503, 504, 507, 511, 599];
    let db = database().await;
    let (service, runs) = answering(layer(&db)).await;
    for status in RELEASING.into_iter().chain(faults) {
        let path = format!("/{status}");
        let before = runs.count();
        for attempt in 1..=3 {
            let answer = service.post(&path).key("k").send().await;
            assert_eq!(answer.status, status, "{answer:?}");
            assert_eq!(answer.text(), format!("run {}", before + attempt));
            assert!(!answer.is_replay());
        }
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_404_of_an_unknown_path_is_not_recorded() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let fallback = async move |handle: axum::Extension<TxHandle>| {
        let mut tx = handle.lend().await.unwrap();
        effect(&mut tx, "paid").await.unwrap();
        counted.next();
        (StatusCode::NOT_FOUND, Settlement::Complete, "nothing here")
    };
    // Not what the documentation recommends; `Router::layer` meets unknown paths.
    let layer = layer(&db).settle_with(|_| Settlement::Fail);
    let service = serve(Router::new().fallback(fallback).layer(layer)).await;
    for _ in 0..2 {
        let answer = service.post("/nowhere").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (404, false));
    }
    assert_eq!((runs.count(), records(&db).await, effects(&db, "paid").await), (2, 0, 0));
    is_sound(&db, &db).await;
}

/// One route, one handler that has an effect and answers with this.
async fn saying<R>(layer: IdempotencyLayer, answer: R) -> Service
where
    R: IntoResponse + Clone + Send + Sync + 'static,
{
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        answer
    };
    serve_behind(layer, handler).await
}

#[tokio::test]
async fn a_handler_can_keep_the_rows_of_a_402() {
    let db = database().await;
    let service = saying(layer(&db), (StatusCode::PAYMENT_REQUIRED, Settlement::Complete, "declined")).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 402);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
    assert_eq!(states(&db).await, ["completed"]);
}

#[tokio::test]
async fn a_handler_can_undo_a_success_and_record_it() {
    let db = database().await;
    let service = saying(layer(&db), (Settlement::Fail, "dry run")).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 200);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 0);
    assert_eq!(states(&db).await, ["failed"]);
}

#[tokio::test]
async fn a_handler_can_release_a_success() {
    let db = database().await;
    let service = saying(layer(&db), (Settlement::Release, "try again")).await;
    for _ in 0..2 {
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (200, false));
    }
    assert_eq!((effects(&db, "paid").await, records(&db).await), (0, 0));
}

fn conflicts_are_final(response: &Response) -> Settlement {
    match response.status() {
        StatusCode::CONFLICT => Settlement::Fail,
        StatusCode::IM_A_TEAPOT => Settlement::Complete,
        status => Settlement::by_status(status),
    }
}

#[tokio::test]
async fn a_layer_can_settle_by_a_rule_of_its_own() {
    let db = database().await;
    let (service, _) = answering(layer(&db).settle_with(conflicts_are_final)).await;
    for (status, effect, state) in [(409, 0, Some("failed")), (418, 1, Some("completed")), (401, 1, None)] {
        let (path, key) = (format!("/{status}"), format!("key-{status}"));
        let before = states(&db).await.len();
        let first = service.post(&path).key(&key).send().await;
        assert_eq!(first.status, status);
        assert_eq!(effects(&db, "paid").await, effect, "{status}");
        assert_eq!(states(&db).await.get(before).map(String::as_str), state, "{status}");
        let second = service.post(&path).key(&key).send().await;
        assert_eq!(second.is_replay(), state.is_some(), "{status}");
    }
}

#[tokio::test]
async fn what_the_handler_says_counts_more_than_the_layers_rule() {
    let db = database().await;
    let service =
        saying(layer(&db).settle_with(|_| Settlement::Release), (Settlement::Complete, "done")).await;
    let first = service.post("/").key("k").send().await;
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn a_panic_keeps_nothing_and_frees_the_key_at_once() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        assert!(counted.next() > 1, "the first run fails");
        StatusCode::CREATED
    };
    let router = Router::new().route("/", post(handler).route_layer(layer(&db)));
    let service = serve(router.layer(CatchPanicLayer::new())).await;
    assert_eq!(service.post("/").key("k").send().await.status, 500);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false));
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_service_error_passes_through_and_keeps_nothing() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let failing = tower::service_fn(move |request: Request<Body>| {
        let run = counted.next();
        async move {
            let mut tx = request.extensions().get::<TxHandle>().unwrap().lend().await.unwrap();
            effect(&mut tx, "paid").await.unwrap();
            if run == 1 { Err("the service's own error") } else { Ok(StatusCode::CREATED.into_response()) }
        }
    });
    let told = async |error: &'static str| (StatusCode::BAD_GATEWAY, error);
    let service = HandleError::new(layer(&db).layer(failing), told);
    let service = serve(Router::new().route_service("/", service)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (502, "the service's own error"));
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_rejection_that_a_handler_passes_on_is_not_recorded() {
    let db = database().await;
    let handler = async move |tx: Tx, handle: axum::Extension<TxHandle>| -> Result<Response, Infallible> {
        // The transaction is out: a clear error, which the handler makes its answer.
        let twice = handle.lend().await.unwrap_err();
        drop(tx);
        Ok((Settlement::Complete, twice).into_response())
    };
    let service = serve_behind(layer(&db), handler).await;
    for _ in 0..2 {
        service.post("/").key("k").send().await.is_rejected(500, "transaction-unavailable");
    }
    assert_eq!(records(&db).await, 0);
    is_sound(&db, &db).await;
}
