//! A handler that met a conflict is executed again, from the buffered request.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sqlx::PgConnection;
use tokio::sync::{Barrier, Mutex};
use tower_idempotency::{Fingerprint, Idempotency, Settlement, Tx};

use crate::support::{
    Runs, begin_dropped_midway, database, effect, effects, is_sound, layer, records, serve, serve_behind,
    states,
};

/// What one run has seen.
#[derive(Debug, PartialEq)]
struct Seen {
    body: Bytes,
    transaction: String,
    effects: i64,
    downstream: String,
}

#[tokio::test]
async fn each_run_gets_the_whole_request_in_a_transaction_of_its_own() {
    let db = database().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let saw = Arc::clone(&seen);
    let handler = async move |mut tx: Tx, idempotency: Idempotency, body: Bytes| -> Response {
        let (transaction, effects) =
            sqlx::query_as("select pg_current_xact_id()::text, (select count(*) from effect)")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
        effect(&mut tx, "paid").await.unwrap();
        let downstream = idempotency.downstream_key("charge").to_string();
        let mut seen = saw.lock().await;
        seen.push(Seen { body, transaction, effects, downstream });
        match seen.len() {
            3 => (StatusCode::CREATED, "at last").into_response(),
            _ => (Settlement::Rerun, "again").into_response(),
        }
    };
    let service = serve_behind(layer(&db), handler).await;
    let first = service.post("/").key("k").body("the order").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "at last"));
    service.post("/").key("k").body("the order").send().await.replays(&first);
    let seen = seen.lock().await;
    assert_eq!(seen.len(), 3);
    for (run, one) in seen.iter().enumerate() {
        assert_eq!((one.body.as_ref(), one.effects), (b"the order".as_slice(), 0), "{run}");
        assert_eq!(one.downstream, seen[0].downstream);
        assert!(seen[..run].iter().all(|other| other.transaction != one.transaction), "{seen:?}");
    }
    assert_eq!((effects(&db, "paid").await, states(&db).await), (1, vec!["completed".to_owned()]));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn reruns_are_bounded_and_the_retry_executes() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        effect(&mut tx, "paid").await.unwrap();
        match counted.next() {
            4 => StatusCode::CREATED.into_response(),
            _ => (StatusCode::CONFLICT, Settlement::Rerun, "again").into_response(),
        }
    };
    let route = post(handler).route_layer(layer(&db).max_reruns(2));
    let service = serve(Router::new().route("/", route)).await;
    service.post("/").key("k").send().await.is_rejected(503, "reruns-exhausted");
    assert_eq!((runs.count(), records(&db).await, effects(&db, "paid").await), (3, 0, 0));
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay(), runs.count()), (201, false, 4));
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_request_whose_body_is_a_stream_is_not_executed_again() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx, _: Bytes| {
        effect(&mut tx, "paid").await.unwrap();
        counted.next();
        (Settlement::Rerun, "again")
    };
    let route = post(handler).route_layer(layer(&db).fingerprint(Fingerprint::without_body()));
    let service = serve(Router::new().route("/", route)).await;
    service.post("/").key("k").body("upload").send().await.is_rejected(503, "reruns-exhausted");
    assert_eq!((runs.count(), records(&db).await, effects(&db, "paid").await), (1, 0, 0));
    is_sound(&db, &db).await;
}

enum Failure {
    Conflict,
    Other,
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if Settlement::is_rerun(&error) { Self::Conflict } else { Self::Other }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        match self {
            Self::Conflict => (status, Settlement::Rerun, "conflict").into_response(),
            Self::Other => status.into_response(),
        }
    }
}

async fn lock(connection: &mut PgConnection, parent: i64) -> Result<(), sqlx::Error> {
    sqlx::query("select from parent where id = $1 for update").bind(parent).execute(connection).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_between_two_handlers_is_solved_by_running_one_again() {
    let db = database().await;
    sqlx::query("insert into parent values (1), (2)").execute(&*db).await.unwrap();
    let (runs, both) = (Runs::default(), Arc::new(Barrier::new(2)));
    let counted = runs.clone();
    let handler = async move |Path((first, second)): Path<(i64, i64)>, mut tx: Tx| -> Result<_, Failure> {
        let run = counted.next();
        effect(&mut tx, "paid").await?;
        lock(&mut tx, first).await?;
        if run <= 2 {
            both.wait().await;
        }
        lock(&mut tx, second).await?;
        Ok(StatusCode::CREATED)
    };
    let route = post(handler).route_layer(layer(&db));
    let service = serve(Router::new().route("/{first}/{second}", route)).await;
    let (one, other) =
        tokio::join!(service.post("/1/2").key("one").send(), service.post("/2/1").key("other").send());
    assert_eq!((one.status.as_u16(), other.status.as_u16()), (201, 201));
    // One more if the one that was run again came first to the row that the other waits for.
    assert!(runs.count() >= 3, "they did not meet");
    assert_eq!(effects(&db, "paid").await, 2);
    service.post("/1/2").key("one").send().await.replays(&one);
    service.post("/2/1").key("other").send().await.replays(&other);
    is_sound(&db, &db).await;
}

/// A conflict that only COMMIT finds is not in any response: the layer sees it itself.
#[tokio::test]
async fn a_conflict_in_commit_is_solved_by_running_the_handler_again() {
    for (failing, status, kept) in [(2, 201, 1), (9, 503, 0)] {
        let db = database().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "create sequence commits;
             create function in_commit() returns trigger language plpgsql as $$
             begin
               if nextval('commits') <= {failing} then raise sqlstate '40001'; end if;
               return null;
             end $$;
             create constraint trigger in_commit after insert on effect
             deferrable initially deferred for each row execute function in_commit()"
        )))
        .execute(&*db)
        .await
        .unwrap();
        let runs = Runs::default();
        let counted = runs.clone();
        let handler = async move |mut tx: Tx| {
            effect(&mut tx, "paid").await.unwrap();
            counted.next();
            StatusCode::CREATED
        };
        let service = serve_behind(layer(&db), handler).await;
        let first = service.post("/").key("k").send().await;
        assert_eq!((first.status.as_u16(), runs.count()), (status, failing.min(3) + 1), "{first:?}");
        assert_eq!(effects(&db, "paid").await, kept);
        sqlx::raw_sql("drop trigger in_commit on effect").execute(&*db).await.unwrap();
        is_sound(&db, &db).await;
    }
}

/// A repository that holds the connection is not stopped by the panic that a `Tx` has for it.
#[tokio::test]
async fn a_write_after_a_begin_that_was_dropped_midway_is_not_run_again() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        counted.next();
        let connection: &mut PgConnection = &mut tx;
        begin_dropped_midway(connection).await;
        effect(connection, "alone").await.unwrap();
        (Settlement::Rerun, "again")
    };
    let service = serve_behind(layer(&db), handler).await;
    let answer = service.post("/").key("k").send().await;
    answer.is_rejected(500, "transaction-ended");
    assert_eq!(answer.json()["retry"], "never");
    assert_eq!((runs.count(), effects(&db, "alone").await), (1, 1));
    is_sound(&db, &db).await;
}
