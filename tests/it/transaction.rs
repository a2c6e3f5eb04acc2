//! Whatever a handler does to its transaction: never a success without its record.

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devpg::TestDb;
use sqlx::Connection as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{
    Answer, Runs, Service, begin_dropped_midway, database, effect, effects, is_sound, layer, poll_once,
    records, serve, states,
};

/// Runs `mischief` in the first run, a well-behaved handler afterwards.
async fn mischievous<M, Fut>(layer: IdempotencyLayer, mischief: M) -> (Service, Runs)
where
    M: Fn(Tx) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send,
{
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| -> Response {
        if counted.next() == 1 {
            return mischief(tx).await;
        }
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED.into_response()
    };
    let router = Router::new().route("/", post(handler).route_layer(layer)).layer(CatchPanicLayer::new());
    (serve(router).await, runs)
}

/// The mischief is a 500 of this kind, nothing is kept, and the retry executes.
async fn is_undone<M, Fut>(code: &str, mischief: M)
where
    M: Fn(Tx) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send,
{
    is_undone_in(&database().await, code, mischief).await;
}

async fn is_undone_in<M, Fut>(db: &TestDb, code: &str, mischief: M)
where
    M: Fn(Tx) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send,
{
    let (service, runs) = mischievous(layer(db), mischief).await;
    service.post("/").key("k").send().await.is_rejected(500, code);
    assert_eq!((records(db).await, effects(db, "paid").await), (0, 0));
    is_sound(db, db).await;
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false), "{retry:?}");
    service.post("/").key("k").send().await.replays(&retry);
    assert_eq!((runs.count(), effects(db, "paid").await), (2, 1));
    is_sound(db, db).await;
}

/// The mischief does no harm: it is answered with this status, and so is the retry, which does not
/// run; so many effects are there.
async fn is_harmless<M, Fut>(status: u16, paid: i64, mischief: M) -> (TestDb, Answer)
where
    M: Fn(Tx) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send,
{
    let db = database().await;
    let (service, runs) = mischievous(layer(&db), mischief).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, status, "{first:?}");
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((runs.count(), effects(&db, "paid").await), (1, paid));
    is_sound(&db, &db).await;
    (db, first)
}

#[tokio::test]
async fn a_swallowed_unique_violation_is_a_500_and_nothing_is_committed() {
    is_undone("transaction-aborted", async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        for _ in 0..2 {
            let _ = sqlx::query("insert into once values ('same')").execute(&mut *tx).await;
        }
        StatusCode::OK.into_response()
    })
    .await;
}

#[tokio::test]
async fn a_violation_inside_of_a_savepoint_that_is_rolled_back_does_no_harm() {
    let (db, first) = is_harmless(200, 1, async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        for _ in 0..2 {
            let mut nested = tx.begin().await.unwrap();
            effect(&mut nested, "booked").await.unwrap();
            if sqlx::query("insert into once values ('same')").execute(&mut *nested).await.is_ok() {
                nested.commit().await.unwrap();
            }
        }
        (StatusCode::OK, "one of two").into_response()
    })
    .await;
    assert_eq!((first.text(), effects(&db, "booked").await), ("one of two", 1));
}

#[tokio::test]
async fn a_savepoint_left_open_is_a_500_and_nothing_is_committed() {
    is_undone("transaction-aborted", async |mut tx: Tx| {
        let mut nested = tx.begin().await.unwrap();
        effect(&mut nested, "paid").await.unwrap();
        std::mem::forget(nested);
        StatusCode::OK.into_response()
    })
    .await;
}

#[tokio::test]
async fn a_savepoint_left_open_under_a_recorded_refusal_does_no_harm() {
    is_harmless(402, 0, async |mut tx: Tx| {
        let mut nested = tx.begin().await.unwrap();
        effect(&mut nested, "paid").await.unwrap();
        std::mem::forget(nested);
        StatusCode::PAYMENT_REQUIRED.into_response()
    })
    .await;
}

#[tokio::test]
async fn a_savepoint_made_by_hand_is_committed_with_the_rest() {
    is_harmless(200, 1, async |mut tx: Tx| {
        sqlx::raw_sql("savepoint mine").execute(&mut *tx).await.unwrap();
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::OK.into_response()
    })
    .await;
}

#[tokio::test]
async fn a_nested_begin_dropped_midway_is_a_500_and_nothing_is_committed() {
    is_undone("transaction-ended", async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        begin_dropped_midway(&mut tx).await;
        StatusCode::OK.into_response()
    })
    .await;
}

/// The write would stand alone: the transaction is over, and the connection commits by itself.
#[tokio::test]
async fn a_write_after_a_nested_begin_dropped_midway_panics_and_has_no_effect() {
    for status in [StatusCode::OK, StatusCode::PAYMENT_REQUIRED] {
        let db = database().await;
        let (service, runs) = mischievous(layer(&db), move |mut tx: Tx| async move {
            effect(&mut tx, "paid").await.unwrap();
            begin_dropped_midway(&mut tx).await;
            effect(&mut tx, "paid").await.unwrap();
            status.into_response()
        })
        .await;
        assert_eq!(service.post("/").key("k").send().await.status, 500);
        assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
        is_sound(&db, &db).await;
        assert_eq!(service.post("/").key("k").send().await.status, 201);
        assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
        is_sound(&db, &db).await;
    }
}

/// sqlx takes back two levels then, the one that was begun and the one around it.
#[tokio::test]
async fn a_begin_dropped_midway_inside_of_a_savepoint_is_a_500_and_nothing_is_committed() {
    is_undone("transaction-ended", async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        let mut nested = tx.begin().await.unwrap();
        begin_dropped_midway(&mut nested).await;
        nested.commit().await.unwrap();
        StatusCode::OK.into_response()
    })
    .await;
}

/// Another level deeper, the `commit` of a savepoint is then a COMMIT of everything. The effect
/// stands; the answer does not call it a success, and the retry does not double it.
#[tokio::test]
async fn a_begin_dropped_midway_two_savepoints_deep_is_never_a_success_nor_doubled() {
    let db = database().await;
    let (service, runs) = mischievous(layer(&db), async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        let mut outer = tx.begin().await.unwrap();
        let mut inner = outer.begin().await.unwrap();
        begin_dropped_midway(&mut inner).await;
        inner.commit().await.unwrap();
        outer.commit().await.unwrap();
        StatusCode::OK.into_response()
    })
    .await;
    let first = service.post("/").key("k").send().await;
    first.is_rejected(500, "transaction-ended");
    assert_eq!(first.json()["retry"], "never");
    service.post("/").key("k").send().await.is_rejected(500, "record-unreadable");
    assert_eq!((runs.count(), effects(&db, "paid").await), (1, 1));
    assert_eq!(states(&db).await, ["pending"]);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_statement_dropped_midway_is_settled_with_the_rest() {
    is_harmless(200, 1, async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        poll_once(sqlx::query("select pg_sleep(0.05)").execute(&mut *tx)).await;
        StatusCode::OK.into_response()
    })
    .await;
}

#[tokio::test]
async fn a_role_without_rights_is_a_500_and_nothing_is_committed() {
    let db = database().await;
    let role = format!("{}_clerk", db.name());
    let sql = format!("create role {role}; grant insert, select on effect to {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&*db).await.unwrap();
    let set = format!("set local role {role}");
    is_undone_in(&db, "transaction-aborted", move |mut tx: Tx| {
        let set = set.clone();
        async move {
            sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
            effect(&mut tx, "paid").await.unwrap();
            StatusCode::OK.into_response()
        }
    })
    .await;
    let sql = format!("drop owned by {role}; drop role {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&*db).await.unwrap();
}
