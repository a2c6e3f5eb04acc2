//! A relay that runs shows that it lives. One that is gone is succeeded at once; one that has only
//! lost its session does no harm.

use std::time::Duration;

use sqlx::PgPool;
use tower_idempotency::outbox::{MemoryPublisher, PublishError, Relay};

use crate::support::database;
use crate::support::outbox::{Gate, Moody, commit, event, relay, time_passes, waiting};
use crate::support::sessions::{
    LEASE, all_is_delivered, is_so, kept_waiting, lose_session, no_new_session, numbers, refuse_sessions,
    registered, running, sessions,
};

#[tokio::test]
async fn a_relay_that_is_gone_is_succeeded_at_the_next_look() {
    let db = database().await;
    let gate = Gate::on("a");
    let gone = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    gate.arrival().await;
    let published = MemoryPublisher::default();
    let successor = relay(&db, published.clone());
    assert_eq!(successor.run_once().await.unwrap(), Default::default(), "it lives");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    is_so(async || sessions(&db, false).await == 0).await;
    // One round is enough, though nobody runs.
    assert_eq!(successor.run_once().await.unwrap().published, 2);
    assert_eq!(numbers(&published), [1, 2]);
}

#[tokio::test]
async fn what_a_relay_that_is_gone_was_still_claiming_is_found_a_little_later() {
    let db = database().await;
    let successor = relay(&db, MemoryPublisher::default());
    let gone: i32 = sqlx::query_scalar("insert into idempotency.outbox_relay default values returning id")
        .fetch_one(&*db)
        .await
        .unwrap();
    successor.run_once().await.unwrap();
    assert_eq!(registered(&db).await, 1, "forgotten too soon");
    // A statement that was running when its session ended.
    commit(&db, &[event("a", 1)]).await;
    sqlx::query(
        "insert into idempotency.outbox_lane (aggregatetype, aggregateid, ready_at, owner, relay)
         values ('test', 'a', now() + interval '1 hour', gen_random_uuid(), $1)",
    )
    .bind(gone)
    .execute(&*db)
    .await
    .unwrap();
    assert_eq!(successor.run_once().await.unwrap(), Default::default());
    sqlx::query("update idempotency.outbox_relay set gone_at = gone_at - interval '2 seconds'")
        .execute(&*db)
        .await
        .unwrap();
    assert_eq!(successor.run_once().await.unwrap().published, 1);
    assert_eq!(registered(&db).await, 0, "not forgotten");
}

#[tokio::test]
async fn a_relay_that_stops_is_forgotten() {
    let db = database().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let one = relay(&db, MemoryPublisher::default());
    let stopping = tokio::spawn(async move { one.run(async { drop(stopped.await) }).await });
    is_so(async || registered(&db).await == 1).await;
    drop(stop);
    stopping.await.unwrap();
    assert_eq!(registered(&db).await, 0);
}

#[tokio::test]
async fn a_relay_that_lost_its_session_and_its_lanes_publishes_no_other_event_of_them() {
    let db = database().await;
    let (gate, late) = (Gate::on("a"), Gate::on("a"));
    // It has no room to claim again what it loses.
    let overtaken = running(&db, relay(&db, gate.clone()).lease(LEASE).concurrency(1)).await;
    commit(&db, &[event("a", 1), event("a", 2), event("a", 3)]).await;
    gate.arrival().await;
    // Others find it gone before it has another session: that takes until this is over.
    let hold = no_new_session(&db).await;
    lose_session(&db).await;
    is_so(async || sessions(&db, false).await == 0).await;
    let successor = relay(&db, late.clone()).lease(LEASE);
    let successor = tokio::spawn(async move { successor.run_once().await.unwrap() });
    late.arrival().await;
    hold.rollback().await.unwrap();
    // It has a session again, and knows what is not its own any more.
    is_so(async || sessions(&db, false).await == 1).await;
    gate.open.add_permits(10);
    is_so(async || numbers(&gate.published) == [1]).await;
    late.open.add_permits(10);
    assert_eq!(successor.await.unwrap().published, 3);
    is_so(async || all_is_delivered(&db).await).await;
    // The one that it had begun, and that one only.
    assert_eq!((numbers(&gate.published), numbers(&late.published)), (vec![1], vec![1, 2, 3]));
    overtaken.abort();
}

#[tokio::test]
async fn a_relay_publishes_no_other_event_while_it_does_not_know_whether_it_is_succeeded() {
    let db = database().await;
    let gate = Gate::on("a");
    // It has no room for others, so that it is not at a statement when it learns of it.
    let alone = running(&db, relay(&db, gate.clone()).lease(LEASE).concurrency(1)).await;
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    gate.arrival().await;
    let hold = no_new_session(&db).await;
    lose_session(&db).await;
    // Another one is being made, and waits.
    is_so(async || kept_waiting(&db).await == 1).await;
    gate.open.add_permits(10);
    is_so(async || waiting(&db).await == 1).await;
    assert_eq!(numbers(&gate.published), [1]);
    // Nobody has come for it: it goes on.
    hold.rollback().await.unwrap();
    is_so(async || all_is_delivered(&db).await).await;
    assert_eq!(numbers(&gate.published), [1, 2]);
    alone.abort();
}

#[tokio::test]
async fn nor_does_one_that_waits_for_the_database_when_it_loses_its_session() {
    let db = database().await;
    let gate = Gate::on("a");
    let alone = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    gate.arrival().await;
    let hold = no_new_session(&db).await;
    let mut looks = db.begin().await.unwrap();
    let lock = "lock table idempotency.outbox_look in access exclusive mode";
    sqlx::query(lock).execute(&mut *looks).await.unwrap();
    let waits = "select exists (select from pg_locks where not granted
         and relation = 'idempotency.outbox_look'::regclass)";
    is_so(async || sqlx::query_scalar(waits).fetch_one(&*db).await.unwrap()).await;
    assert_eq!(sessions(&db, true).await, 1);
    is_so(async || kept_waiting(&db).await == 1).await;
    gate.open.add_permits(1);
    let other = tokio::time::timeout(Duration::from_millis(500), gate.arrival()).await;
    assert!(other.is_err(), "it publishes what may be another's");
    looks.rollback().await.unwrap();
    hold.rollback().await.unwrap();
    gate.open.add_permits(10);
    is_so(async || all_is_delivered(&db).await).await;
    assert_eq!(numbers(&gate.published), [1, 2]);
    alone.abort();
}

#[tokio::test]
async fn a_relay_has_a_session_again_after_it_has_lost_one() {
    let db = database().await;
    let gate = Gate::on("a");
    let gone = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    commit(&db, &[event("a", 1)]).await;
    gate.arrival().await;
    let first = "select relay, owner from idempotency.outbox_lane";
    let first: (i32, uuid::Uuid) = sqlx::query_as(first).fetch_one(&*db).await.unwrap();
    sessions(&db, true).await;
    // What it had in hand is under its new number, and not claimed anew.
    let again = "select exists (select from idempotency.outbox_lane where relay > $1 and owner = $2)";
    is_so(async || sqlx::query_scalar(again).bind(first.0).bind(first.1).fetch_one(&*db).await.unwrap())
        .await;
    let successor = relay(&db, MemoryPublisher::default());
    assert_eq!(successor.run_once().await.unwrap(), Default::default());
    gone.abort();
    is_so(async || sessions(&db, false).await == 0).await;
    assert_eq!(successor.run_once().await.unwrap().published, 1);
}

#[tokio::test]
async fn a_relay_takes_nothing_before_it_is_known_whether_it_has_a_session() {
    let db = database().await;
    let gate = Gate::on("a");
    commit(&db, &[event("a", 1)]).await;
    let hold = no_new_session(&db).await;
    let started = relay(&db, gate.clone());
    let started = tokio::spawn(async move { started.run(std::future::pending()).await });
    let taken = tokio::time::timeout(Duration::from_millis(500), gate.arrival()).await;
    assert!(taken.is_err(), "who succeeds it would wait for its lease");
    hold.rollback().await.unwrap();
    gate.arrival().await;
    started.abort();
}

#[tokio::test]
async fn a_session_takes_no_connection_of_the_pool() {
    let db = database().await;
    let pool = db.pool(1).await;
    let published = MemoryPublisher::default();
    let running = running(&db, relay(&pool, published.clone())).await;
    commit(&db, &[event("a", 1), event("b", 1)]).await;
    is_so(async || all_is_delivered(&db).await).await;
    assert_eq!((published.events().len(), pool.size()), (2, 1));
    // And it ends with the pool, as all its connections do.
    pool.close().await;
    is_so(async || sessions(&db, false).await == 0).await;
    running.abort();
}

async fn lanes_are_left_to_their_leases(pool: &PgPool, set: impl Fn(Relay) -> Relay) {
    let gate = Gate::on("a");
    let gone = set(relay(pool, gate.clone()).lease(LEASE));
    let gone = tokio::spawn(async move { gone.run(std::future::pending()).await });
    commit(pool, &[event("a", 1)]).await;
    gate.arrival().await;
    assert_eq!((registered(pool).await, sessions(pool, false).await), (0, 0));
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let successor = relay(pool, MemoryPublisher::default());
    assert_eq!(successor.run_once().await.unwrap(), Default::default());
    time_passes(pool).await;
    assert_eq!(successor.run_once().await.unwrap().published, 1);
}

#[tokio::test]
async fn without_a_session_lanes_are_left_to_their_leases() {
    let db = database().await;
    lanes_are_left_to_their_leases(&db, Relay::without_session).await;
    lanes_are_left_to_their_leases(&db, Relay::unnamed_statements).await;
}

#[tokio::test]
async fn a_relay_for_which_no_session_is_to_be_had_delivers_all_the_same() {
    let db = database().await;
    refuse_sessions(&db).await;
    lanes_are_left_to_their_leases(&db, |relay| relay).await;
}

#[test]
fn a_runtime_that_ends_under_a_relay_ends_its_session() {
    let outer = tokio::runtime::Runtime::new().unwrap();
    let db = outer.block_on(database());
    for workers in [0, 2] {
        let inner = if workers == 0 {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
        } else {
            tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
        };
        inner.block_on(async {
            let pool = sqlx::postgres::PgPoolOptions::new().connect_with(db.options()).await.unwrap();
            running(&pool, relay(&pool, MemoryPublisher::default())).await;
        });
        drop(inner);
        outer.block_on(is_so(async || sessions(&db, false).await == 0));
    }
    drop(outer);
    drop(db);
}

/// Of both kinds of claims.
#[tokio::test]
async fn lanes_that_had_failed_are_succeeded_too() {
    let db = database().await;
    let failing = Moody::default();
    failing.fails(|_| Some(PublishError::failed("no")));
    commit(&db, &[event("a", 1)]).await;
    relay(&db, failing).run_once().await.unwrap();
    let gate = Gate::on("a");
    time_passes(&db).await;
    let gone = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    gate.arrival().await;
    gone.abort();
    is_so(async || sessions(&db, false).await == 0).await;
    assert_eq!(relay(&db, gate.published.clone()).run_once().await.unwrap().published, 1);
    assert_eq!(numbers(&gate.published), [1]);
}
