//! An execution takes so long and no longer.

use std::future::pending;
use std::time::Duration;

use axum::http::StatusCode;
use tower_idempotency::Tx;

use crate::support::{Runs, database, effect, effects, eventually, is_sound, layer, records, serve_behind};

#[tokio::test]
async fn a_handler_that_hangs_is_stopped_and_its_effects_are_undone() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() == 1 {
            pending::<()>().await;
        }
        StatusCode::CREATED
    };
    let layer = layer(&db).execution_timeout(Duration::from_millis(100));
    let service = serve_behind(layer, handler).await;
    let first = tokio::time::timeout(Duration::from_secs(30), service.post("/").key("k").send()).await;
    first.expect("an answer in time").is_rejected(503, "execution-timeout");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false));
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

/// The statement goes on in the server, which looks now and then whether anybody waits for it.
#[tokio::test]
async fn a_handler_that_hangs_in_a_statement_is_stopped_and_its_key_becomes_free() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() == 1 {
            sqlx::query("select pg_sleep(600)").execute(&mut *tx).await.unwrap();
        }
        StatusCode::CREATED
    };
    let layer = layer(&db)
        .execution_timeout(Duration::from_millis(100))
        .liveness_interval(Duration::from_millis(100));
    let service = serve_behind(layer, handler).await;
    let first = tokio::time::timeout(Duration::from_secs(30), service.post("/").key("k").send()).await;
    first.expect("an answer in time").is_rejected(503, "execution-timeout");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    eventually(std::panic::Location::caller(), async || {
        let retry = service.post("/").key("k").send().await;
        match retry.status.as_u16() {
            201 => Ok(()),
            409 => Err(String::from("still taken")),
            _ => panic!("{retry:?}"),
        }
    })
    .await;
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
    is_sound(&db, &db).await;
}
