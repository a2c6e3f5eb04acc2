//! A refusal is recorded after the rollback, when others may have claimed the key.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use devpg::TestDb;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tower_idempotency::Tx;

use crate::support::{
    Answer, Fate, Proxy, Runs, Service, Turnstile, database, effect, effects, eventually, is_sound, layer,
    records, serve, states, through,
};

/// The first run is refused, later ones succeed.
async fn refused_once(State((runs, gate)): State<(Runs, Turnstile)>, mut tx: Tx) -> impl IntoResponse {
    effect(&mut tx, "paid").await.unwrap();
    match runs.next() {
        1 => (StatusCode::PAYMENT_REQUIRED, "declined"),
        _ => {
            gate.pass().await;
            (StatusCode::CREATED, "paid")
        }
    }
}

async fn replica(pool: &PgPool, state: &(Runs, Turnstile)) -> Service {
    let route = post(refused_once).route_layer(layer(pool));
    serve(Router::new().route("/", route).with_state(state.clone())).await
}

/// Makes the statement that records a refusal wait before it takes the key's lock, until the
/// returned connection gives the test's lock back.
async fn hold_refusals(db: &TestDb) -> PoolConnection<Postgres> {
    sqlx::raw_sql(
        "create function hold() returns trigger language plpgsql as $$
         begin
           if current_query() like '%keep the refusal%' then
             perform pg_advisory_lock_shared(42), pg_advisory_unlock_shared(42);
           end if;
           return null;
         end $$;
         create trigger hold before insert on idempotency.record for each statement execute function hold()",
    )
    .execute(&**db)
    .await
    .unwrap();
    let mut holder = db.acquire().await.unwrap();
    sqlx::query("select pg_advisory_lock(42)").execute(&mut *holder).await.unwrap();
    holder
}

async fn a_refusal_waits(db: &TestDb) {
    let at = std::panic::Location::caller();
    eventually(at, async || {
        let waits: bool = sqlx::query_scalar(
            "select exists (select from pg_locks where locktype = 'advisory' and objid = 42 and not granted
                            and database = (select oid from pg_database where datname = current_database()))",
        )
        .fetch_one(&**db)
        .await
        .unwrap();
        if waits { Ok(()) } else { Err("no refusal waits to be recorded".into()) }
    })
    .await;
}

async fn let_go(mut holder: PoolConnection<Postgres>) {
    sqlx::query("select pg_advisory_unlock(42)").execute(&mut *holder).await.unwrap();
}

/// A first request, refused by the handler, up to where its refusal is to be recorded.
async fn meeting(
    db: &TestDb,
) -> (Service, (Runs, Turnstile), PoolConnection<Postgres>, tokio::task::JoinHandle<Answer>) {
    let holder = hold_refusals(db).await;
    let state = (Runs::default(), Turnstile::default());
    let replica_of_first = replica(db, &state).await;
    let first = replica_of_first.post("/").key("k").json("{}");
    let first = tokio::spawn(async move {
        let answer = first.send().await;
        drop(replica_of_first);
        answer
    });
    a_refusal_waits(db).await;
    // Another process: it does not know what the first is executing.
    (replica(db, &state).await, state, holder, first)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_meets_anothers_success_answers_as_its_duplicate() {
    let db = database().await;
    let (other, (runs, gate), holder, first) = meeting(&db).await;
    gate.open();
    let second = other.post("/").key("k").json("{}").send().await;
    assert_eq!((second.status.as_u16(), second.text()), (201, "paid"));
    let_go(holder).await;
    first.await.unwrap().replays(&second);
    other.post("/").key("k").json("{}").send().await.replays(&second);
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
    assert_eq!(states(&db).await, ["completed"]);
    is_sound(&db, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_meets_another_execution_answers_in_flight() {
    let db = database().await;
    let (other, (runs, gate), holder, first) = meeting(&db).await;
    let call = other.post("/").key("k").json("{}");
    let second = tokio::spawn(call.send());
    gate.arrival().await;
    let_go(holder).await;
    first.await.unwrap().is_rejected(409, "in-flight");
    gate.open();
    let second = second.await.unwrap();
    assert_eq!(second.status, 201);
    other.post("/").key("k").json("{}").send().await.replays(&second);
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
    is_sound(&db, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_meets_another_request_with_its_key_answers_that_the_key_is_reused() {
    let db = database().await;
    let (other, (runs, gate), holder, first) = meeting(&db).await;
    gate.open();
    let second = other.post("/").key("k").json(r#"{"amount":2}"#).send().await;
    assert_eq!(second.status, 201);
    let_go(holder).await;
    first.await.unwrap().is_rejected(422, "key-reused");
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 1));
    is_sound(&db, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_recorded_when_the_other_attempt_has_come_and_gone() {
    let db = database().await;
    let (other, (runs, gate), holder, first) = meeting(&db).await;
    // The other attempt is cut off by its server's end.
    let second = tokio::spawn(other.post("/").key("k").json("{}").try_send());
    gate.arrival().await;
    second.abort();
    sqlx::query(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity
         where datname = current_database() and state = 'idle in transaction'",
    )
    .execute(&*db)
    .await
    .unwrap();
    let_go(holder).await;
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), first.text()), (402, "declined"));
    gate.open();
    assert_eq!((runs.count(), effects(&db, "paid").await), (2, 0));
    assert_eq!(states(&db).await, ["failed"]);
    replica(&db, &(runs, gate)).await.post("/").key("k").json("{}").send().await.replays(&first);
    is_sound(&db, &db).await;
}

async fn break_refusals(db: &TestDb, how: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "create function break() returns trigger language plpgsql as $$
         begin
           if new.state = 'failed' then {how}; end if;
           return new;
         end $$;
         create trigger break before insert on idempotency.record for each row execute function break()"
    )))
    .execute(&**db)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_refusal_that_cannot_be_recorded_is_a_503() {
    for how in ["raise 'the disk is full'", "perform pg_terminate_backend(pg_backend_pid())"] {
        let db = database().await;
        break_refusals(&db, how).await;
        let state = (Runs::default(), Turnstile::default());
        let service = replica(&db, &state).await;
        service.post("/").key("k").send().await.is_rejected(503, "database-unavailable");
        assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0), "{how}");
        state.1.open();
        let retry = service.post("/").key("k").send().await;
        assert_eq!((retry.status.as_u16(), retry.is_replay()), (201, false), "{how}");
        is_sound(&db, &db).await;
    }
}

#[tokio::test]
async fn a_refusal_whose_recording_went_unanswered_is_settled_from_the_record() {
    let db = database().await;
    let unnamed = through::unnamed(&db);
    let armed = AtomicBool::new(false);
    let cut = AtomicBool::new(false);
    let proxy = Proxy::to(&db, move |message| {
        if message.contains("keep the refusal") {
            armed.store(true, Ordering::SeqCst);
        }
        // By itself, or through PgBouncer in a transaction of its own.
        let writes = if unnamed { message.is_query("COMMIT") } else { message.is_execute() };
        let writes = writes && armed.load(Ordering::SeqCst);
        if writes && !cut.swap(true, Ordering::SeqCst) { Fate::Unanswered } else { Fate::Forward }
    });
    let state = (Runs::default(), Turnstile::default());
    let service = replica(&proxy.pool(4).await, &state).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!((first.status.as_u16(), first.text()), (402, "declined"));
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((state.0.count(), effects(&db, "paid").await), (1, 0));
    assert_eq!(states(&db).await, ["failed"]);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_refusal_takes_the_place_of_one_that_has_expired() {
    let db = database().await;
    let service = replica(&db, &(Runs::default(), Turnstile::default())).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 402);
    sqlx::query("update idempotency.record set expires_at = now() - interval '1 second'")
        .execute(&*db)
        .await
        .unwrap();
    // Run 1 again, for another process.
    let service = replica(&db, &(Runs::default(), Turnstile::default())).await;
    let second = service.post("/").key("k").send().await;
    assert_eq!((second.status.as_u16(), second.is_replay()), (402, false));
    service.post("/").key("k").send().await.replays(&second);
    assert_eq!(states(&db).await, ["failed"]);
}
