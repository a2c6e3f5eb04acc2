//! The database refuses COMMIT, or is lost before it, in it, or after it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use devpg::TestDb;
use sqlx::PgPool;
use tokio::sync::oneshot;
use tower_idempotency::Tx;

use crate::support::{
    Fate, Message, Proxy, Runs, Service, database, effect, effects, is_sound, layer, records, serve_behind,
    states,
};

/// Has an effect; `trouble` happens in the first run, after it.
async fn troubled(pool: &PgPool, trouble: &'static str) -> (Service, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() == 1 {
            // A handler that does not look at its errors.
            let _ = sqlx::raw_sql(trouble).execute(&mut *tx).await;
        }
        (StatusCode::CREATED, [("location", "/payments/1")], "paid")
    };
    (serve_behind(layer(pool), handler).await, runs)
}

async fn nothing_is_kept(db: &TestDb) {
    assert_eq!((records(db).await, effects(db, "paid").await), (0, 0));
}

/// The retry executes, and its own retry replays.
async fn a_retry_executes(db: &TestDb, service: &Service, runs: &Runs) {
    let retry = service.post("/").key("k").send().await;
    assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false), "{retry:?}");
    service.post("/").key("k").send().await.replays(&retry);
    assert_eq!((runs.count(), effects(db, "paid").await), (2, 1));
    assert_eq!(states(db).await, ["completed"]);
    is_sound(db, db).await;
}

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit_is_a_500_with_nothing_recorded() {
    let db = database().await;
    let (service, runs) = troubled(&db, "insert into child (parent) values (1)").await;
    service.post("/").key("k").send().await.is_rejected(500, "commit-refused");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
}

#[tokio::test]
async fn a_backend_that_is_terminated_before_settling_is_a_503() {
    let db = database().await;
    let (service, runs) = troubled(&db, "select pg_terminate_backend(pg_backend_pid())").await;
    service.post("/").key("k").send().await.is_rejected(503, "database-unavailable");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
}

#[tokio::test]
async fn a_backend_that_is_terminated_before_the_handlers_statement_is_a_503() {
    let db = database().await;
    let runs = Runs::default();
    let (counted, pool) = (runs.clone(), PgPool::clone(&db));
    let handler = async move |mut tx: Tx| {
        if counted.next() == 1 {
            let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
            let ended: bool = sqlx::query_scalar("select pg_terminate_backend($1, 5000)")
                .bind(pid)
                .fetch_one(&pool)
                .await
                .unwrap();
            assert!(ended);
            effect(&mut tx, "paid").await.unwrap_err();
            return (StatusCode::CREATED, "paid, it believes");
        }
        effect(&mut tx, "paid").await.unwrap();
        (StatusCode::CREATED, "paid")
    };
    let service = serve_behind(layer(&db), handler).await;
    service.post("/").key("k").send().await.is_rejected(503, "database-unavailable");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
}

/// Runs a statement inside of COMMIT, once per database.
async fn in_commit(db: &TestDb, statement: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "create sequence commits;
         create function in_commit() returns trigger language plpgsql as $$
         begin
           if nextval('commits') = 1 then {statement}; end if;
           return null;
         end $$;
         create constraint trigger in_commit after insert on effect
         deferrable initially deferred for each row execute function in_commit()"
    )))
    .execute(&**db)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_backend_that_is_terminated_in_commit_is_a_503() {
    let db = database().await;
    in_commit(&db, "perform pg_terminate_backend(pg_backend_pid())").await;
    let (service, runs) = troubled(&db, "").await;
    service.post("/").key("k").send().await.is_rejected(503, "database-unavailable");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
}

#[tokio::test]
async fn an_error_in_commit_that_a_constraint_did_not_raise_is_a_refusal_too() {
    let db = database().await;
    in_commit(&db, "raise 'not today'").await;
    let (service, runs) = troubled(&db, "").await;
    service.post("/").key("k").send().await.is_rejected(500, "commit-refused");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
}

/// What becomes of the first COMMIT; all other messages pass.
fn first_commit(fate: Fate) -> impl Fn(&Message) -> Fate + Send + Sync {
    let fate = Mutex::new(Some(fate));
    move |message| {
        if message.is_query("COMMIT") {
            fate.lock().unwrap().take().unwrap_or(Fate::Forward)
        } else {
            Fate::Forward
        }
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_settled_from_the_record() {
    let db = database().await;
    let proxy = Proxy::to(&db, first_commit(Fate::Unanswered));
    let pool = proxy.pool(4).await;
    let (service, runs) = troubled(&pool, "").await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "paid"));
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((runs.count(), effects(&db, "paid").await), (1, 1));
    assert_eq!(states(&db).await, ["completed"]);
    is_sound(&db, &pool).await;
}

#[tokio::test]
async fn a_commit_that_never_reaches_the_server_is_a_503_and_the_retry_executes() {
    let db = database().await;
    let proxy = Proxy::to(&db, first_commit(Fate::Lost));
    let pool = proxy.pool(4).await;
    let (service, runs) = troubled(&pool, "").await;
    service.post("/").key("k").send().await.is_rejected(503, "database-unavailable");
    nothing_is_kept(&db).await;
    a_retry_executes(&db, &service, &runs).await;
    is_sound(&db, &pool).await;
}

/// Neither committed nor undone: the connection is lost, and COMMIT is still on its way when the
/// layer asks for the outcome the first time. An absent record would prove nothing.
#[tokio::test]
async fn a_commit_that_arrives_late_is_waited_for() {
    let db = database().await;
    let (tell, told) = oneshot::channel();
    let tell = Mutex::new(Some(tell));
    let asked = Arc::new(AtomicUsize::new(0));
    let commit = first_commit(Fate::Late(told));
    let counted = Arc::clone(&asked);
    let lost = AtomicUsize::new(0);
    let proxy = Proxy::to(&db, move |message| {
        if message.is_query("COMMIT") && lost.fetch_add(1, Ordering::SeqCst) == 0 {
            return commit(message);
        }
        // Its transaction begins anew each time it asks.
        if lost.load(Ordering::SeqCst) > 0 && message.contains("begin isolation") {
            let asks = counted.fetch_add(1, Ordering::SeqCst) + 1;
            if asks == 3 {
                tell.lock().unwrap().take().unwrap().send(()).unwrap();
            }
        }
        Fate::Forward
    });
    let pool = proxy.pool(4).await;
    let (service, runs) = troubled(&pool, "").await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "paid"), "{first:?}");
    assert!(asked.load(Ordering::SeqCst) >= 3);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((runs.count(), effects(&db, "paid").await), (1, 1));
    is_sound(&db, &pool).await;
}

/// A pool of one: nothing else may hold its connection while the outcome is asked for.
#[tokio::test]
async fn a_lost_commit_is_settled_with_a_pool_of_one() {
    let db = database().await;
    let proxy = Proxy::to(&db, first_commit(Fate::Unanswered));
    let pool = proxy.pool(1).await;
    let (service, _) = troubled(&pool, "").await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (201, "paid"));
    service.post("/").key("k").send().await.replays(&first);
    is_sound(&db, &pool).await;
}

#[tokio::test]
async fn a_commit_that_goes_unanswered_without_a_key_does_not_promise_that_a_retry_is_safe() {
    let db = database().await;
    let cut = std::sync::atomic::AtomicBool::new(false);
    let proxy = Proxy::to(&db, move |message| {
        let first = message.is_query("COMMIT") && !cut.swap(true, Ordering::SeqCst);
        if first { Fate::Unanswered } else { Fate::Forward }
    });
    let pool = proxy.pool(3).await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&pool).optional(), handler).await;
    let answer = service.post("/").send().await;
    assert_eq!(answer.json()["retry"], "never", "{answer:?}");
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(effects(&db, "paid").await, 1);
}

/// The server has said that nothing was committed: a retry doubles nothing.
#[tokio::test]
async fn an_error_in_commit_without_a_key_is_a_refusal_too() {
    let db = database().await;
    in_commit(&db, "raise exception 'no'").await;
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&db).optional(), handler).await;
    service.post("/").send().await.is_rejected(500, "commit-refused");
    nothing_is_kept(&db).await;
    assert_eq!(service.post("/").send().await.status, 201);
    is_sound(&db, &db).await;
}
