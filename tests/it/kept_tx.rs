//! A transaction that is not home when the handler has answered commits nothing.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use tower_idempotency::{RejectionKind, Settlement, Tx, TxHandle};

use crate::support::{
    Runs, Turnstile, database, effect, effects, eventually, is_sound, layer, records, serve, serve_behind,
};

/// The first run leaves its `Tx` to a task, which keeps it until the gate opens, and answers.
fn keeping(
    runs: &Runs,
    gate: &Turnstile,
    answer: impl IntoResponse + Clone + Send + Sync + 'static,
) -> Keeping {
    let (runs, gate) = (runs.clone(), gate.clone());
    post(async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        if runs.next() == 1 {
            tokio::spawn(async move {
                gate.pass().await;
                // Too late, and without effect.
                let _ = effect(&mut tx, "paid").await;
                drop(tx);
            });
        }
        answer
    })
}

type Keeping = axum::routing::MethodRouter;

#[tokio::test(flavor = "multi_thread")]
async fn a_tx_kept_by_a_task_is_a_500_and_frees_the_key_when_it_is_dropped() {
    for settlement in [Settlement::Complete, Settlement::Fail, Settlement::Rerun] {
        let db = database().await;
        let (runs, gate) = (Runs::default(), Turnstile::default());
        let route = keeping(&runs, &gate, (StatusCode::CREATED, settlement, "paid")).route_layer(layer(&db));
        let service = serve(Router::new().route("/", route)).await;
        service.post("/").key("k").send().await.is_rejected(500, "transaction-kept");
        gate.arrival().await;
        assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
        service.post("/").key("k").send().await.is_rejected(409, "in-flight");
        // Another process sees it as well.
        let route = keeping(&runs, &gate, StatusCode::CREATED).route_layer(layer(&db));
        let other = serve(Router::new().route("/", route)).await;
        other.post("/").key("k").send().await.is_rejected(409, "in-flight");
        assert_eq!(runs.count(), 1);
        gate.open();
        eventually(std::panic::Location::caller(), async || {
            let retry = other.post("/").key("k").send().await;
            match retry.status.as_u16() {
                201 => Ok(()),
                409 => Err(String::from("still taken")),
                _ => panic!("{retry:?}"),
            }
        })
        .await;
        assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1), "{settlement:?}");
        is_sound(&db, &db).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_releases_stands_also_with_a_kept_tx() {
    let db = database().await;
    let (runs, gate) = (Runs::default(), Turnstile::default());
    let route = keeping(&runs, &gate, (StatusCode::UNAUTHORIZED, "your token")).route_layer(layer(&db));
    let service = serve(Router::new().route("/", route)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (401, "your token"));
    gate.arrival().await;
    gate.open();
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_tx_kept_in_the_responses_body_is_a_500_and_the_key_is_free_at_once() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() > 1 {
            return StatusCode::CREATED.into_response();
        }
        let rows = stream::unfold((tx, 0), async |(mut tx, n)| {
            effect(&mut tx, "paid").await.unwrap();
            (n < 3).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b"row")), (tx, n + 1)))
        });
        (StatusCode::CREATED, Body::from_stream(rows)).into_response()
    };
    let service = serve_behind(layer(&db), handler).await;
    service.post("/").key("k").send().await.is_rejected(500, "transaction-kept");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false));
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_tx_kept_in_the_responses_extensions_is_a_500_and_the_key_is_free_at_once() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        let mut response = StatusCode::CREATED.into_response();
        if counted.next() == 1 {
            response.extensions_mut().insert(Arc::new(Mutex::new(tx)));
        }
        response
    };
    let service = serve_behind(layer(&db), handler).await;
    service.post("/").key("k").send().await.is_rejected(500, "transaction-kept");
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

/// A clone of the handle may live on; the transaction cannot be had through it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_outlives_its_request_lends_nothing() {
    let db = database().await;
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let handler = async move |handle: axum::Extension<TxHandle>, mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        *keeps.lock().unwrap() = Some(handle.0);
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&db), handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 201);
    let handle = kept.lock().unwrap().take().unwrap();
    assert_eq!(handle.lend().await.unwrap_err().kind(), RejectionKind::TransactionUnavailable);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_second_tx_while_one_is_out_is_a_clear_500() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |_one: Tx, _two: Tx| {
        counted.next();
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&db), handler).await;
    for _ in 0..2 {
        service.post("/").key("k").send().await.is_rejected(500, "transaction-unavailable");
    }
    assert_eq!((runs.count(), records(&db).await), (0, 0));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_tx_can_be_had_again_when_the_first_is_home() {
    let db = database().await;
    let handler = async |handle: axum::Extension<TxHandle>, mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        drop(tx);
        let mut again = handle.lend().await.unwrap();
        let seen: i64 =
            sqlx::query_scalar("select count(*) from effect").fetch_one(&mut *again).await.unwrap();
        (StatusCode::CREATED, seen.to_string())
    };
    let service = serve_behind(layer(&db), handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "1"));
    service.post("/").key("k").send().await.replays(&first);
}
