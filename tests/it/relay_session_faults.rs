//! A relay whose session is hard to have, to keep or to give back delivers all the same, and does no
//! harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::outbox::{Event, MemoryPublisher, Publisher as _};

use crate::support::outbox::{Gate, commit, event, number, overtake, relay, waiting};
use crate::support::sessions::{
    LEASE, all_is_delivered, held, is_so, kept_waiting, lose_session, no_new_session, numbers,
    refuse_sessions, registered, running, sessions,
};
use crate::support::{Logs, database};

/// Makes the clock of this test's relays leap. A session is tried for ten seconds, and again after five.
async fn leap(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Less than what else it could be that ends a wait.
async fn soon(so: impl AsyncFn() -> bool) {
    tokio::time::timeout(Duration::from_secs(8), is_so(so)).await.expect("not soon");
}

fn of(aggregate: &str, published: &MemoryPublisher) -> Vec<i64> {
    let events = published.events();
    events.iter().filter(|event| event.aggregate_id() == aggregate).map(number).collect()
}

/// Lanes of a relay that is gone, and that nobody knows to be gone yet.
async fn left_behind(pool: &PgPool, aggregates: &[&str]) {
    for aggregate in aggregates {
        commit(pool, &[event(aggregate, 1)]).await;
        sqlx::query(
            "insert into idempotency.outbox_lane (aggregatetype, aggregateid, ready_at, owner, relay)
             values ('test', $1, now() + interval '1 hour', gen_random_uuid(), 1000)",
        )
        .bind(aggregate)
        .execute(pool)
        .await
        .unwrap();
    }
    // These events have been looked at.
    assert_eq!(relay(pool, MemoryPublisher::default()).run_once().await.unwrap(), Default::default());
    sqlx::query("insert into idempotency.outbox_relay (id) overriding system value values (1000)")
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn an_attempt_at_a_session_that_takes_long_is_the_only_one() {
    let db = database().await;
    let hold = no_new_session(&db).await;
    let started = relay(&db, MemoryPublisher::default());
    let started = tokio::spawn(async move { started.run(std::future::pending()).await });
    is_so(async || kept_waiting(&db).await == 1).await;
    leap(Duration::from_secs(11)).await;
    for n in 0..10 {
        // It goes on without one meanwhile.
        commit(&db, &[event("a", n)]).await;
        soon(async || all_is_delivered(&db).await).await;
        leap(Duration::from_secs(6)).await;
    }
    assert_eq!(kept_waiting(&db).await, 1);
    hold.rollback().await.unwrap();
    is_so(async || registered(&db).await == 1).await;
    assert_eq!((sessions(&db, false).await, kept_waiting(&db).await), (1, 0));
    started.abort();
}

#[tokio::test]
async fn a_relay_is_succeeded_in_spite_of_a_lane_that_somebody_has_locked() {
    let db = database().await;
    left_behind(&db, &["a", "b"]).await;
    let mut lock = db.begin().await.unwrap();
    sqlx::query("select from idempotency.outbox_lane where aggregateid = 'a' for update")
        .execute(&mut *lock)
        .await
        .unwrap();
    let published = MemoryPublisher::default();
    let successor = relay(&db, published.clone());
    let round = tokio::time::timeout(Duration::from_secs(8), successor.run_once());
    assert_eq!(round.await.expect("it waits").unwrap().published, 1);
    lock.rollback().await.unwrap();
    sqlx::query("update idempotency.outbox_relay set gone_at = gone_at - interval '2 seconds'")
        .execute(&*db)
        .await
        .unwrap();
    assert_eq!(successor.run_once().await.unwrap().published, 1);
    assert_eq!((of("a", &published), of("b", &published)), (vec![1], vec![1]));
}

#[tokio::test]
async fn what_is_claimed_is_delivered_before_another_relay_is_succeeded() {
    let db = database().await;
    left_behind(&db, &["a"]).await;
    commit(&db, &[event("b", 2)]).await;
    let hold = held(&db, "update on idempotency.outbox_relay").await;
    let published = MemoryPublisher::default();
    let successor = relay(&db, published.clone());
    let round = tokio::spawn(async move { successor.run_once().await.unwrap() });
    is_so(async || kept_waiting(&db).await == 1).await;
    soon(async || numbers(&published) == [2]).await;
    hold.rollback().await.unwrap();
    assert_eq!(round.await.unwrap().published, 2);
}

#[tokio::test]
async fn a_relay_whose_session_panics_goes_on_without_one() {
    let db = database().await;
    let panics = Arc::new(AtomicBool::new(false));
    let hook = Arc::clone(&panics);
    let options = PgPoolOptions::new().max_connections(1).after_connect(move |_, _| {
        let panics = hook.load(Ordering::SeqCst);
        Box::pin(async move {
            assert!(!panics, "as the test wants it");
            Ok(())
        })
    });
    let pool = options.connect_with(db.options()).await.unwrap();
    panics.store(true, Ordering::SeqCst);
    let started = relay(&pool, MemoryPublisher::default());
    let started = tokio::spawn(async move { started.run(std::future::pending()).await });
    commit(&db, &[event("a", 1)]).await;
    soon(async || all_is_delivered(&db).await).await;
    assert_eq!(registered(&db).await, 0);
    started.abort();
}

#[tokio::test]
async fn a_relay_whose_sessions_are_ended_again_and_again_goes_on_without_one() {
    let db = database().await;
    let gate = Gate::on("a");
    let alone = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    commit(&db, &[event("a", 1)]).await;
    gate.arrival().await;
    let number = "select relay from idempotency.outbox_lane where aggregateid = 'a'";
    let first: Option<i32> = sqlx::query_scalar(number).fetch_one(&*db).await.unwrap();
    lose_session(&db).await;
    // Once can happen: it has another one at once, and knows it.
    soon(async || sqlx::query_scalar::<_, Option<i32>>(number).fetch_one(&*db).await.unwrap() > first).await;
    let hold = no_new_session(&db).await;
    lose_session(&db).await;
    is_so(async || sessions(&db, false).await == 0).await;
    commit(&db, &[event("b", 2)]).await;
    soon(async || numbers(&gate.published) == [2]).await;
    hold.rollback().await.unwrap();
    alone.abort();
}

#[tokio::test]
async fn a_relay_that_was_busy_while_it_lost_its_session_publishes_no_other_event() {
    let logs = Logs::capture();
    let db = database().await;
    let (gate, late) = (Gate::on("a"), Gate::on("a"));
    let overtaken = running(&db, relay(&db, gate.clone()).lease(LEASE)).await;
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    gate.arrival().await;
    refuse_sessions(&db).await;
    let busy = held(&db, "insert on idempotency.outbox_lane").await;
    commit(&db, &[event("b", 1)]).await;
    is_so(async || kept_waiting(&db).await == 1).await;
    lose_session(&db).await;
    // It is shown nothing before it has claimed that event: of all states the last one.
    is_so(async || !logs.lines_with("a relay has no session").is_empty()).await;
    let successor = relay(&db, late.clone()).lease(LEASE);
    let successor = tokio::spawn(async move { successor.run_once().await });
    late.arrival().await;
    busy.rollback().await.unwrap();
    is_so(async || waiting(&db).await == 2).await;
    // The one that it had begun, and that one only.
    gate.open.add_permits(10);
    is_so(async || !of("a", &gate.published).is_empty()).await;
    commit(&db, &[event("c", 1)]).await;
    is_so(async || of("c", &gate.published) == [1]).await;
    assert_eq!(of("a", &gate.published), [1]);
    late.open.add_permits(10);
    successor.await.unwrap().unwrap();
    is_so(async || all_is_delivered(&db).await).await;
    overtaken.abort();
}

#[tokio::test]
async fn a_relay_that_stops_with_something_in_hand_is_succeeded_at_once() {
    let db = database().await;
    let gate = Gate::on("a");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let one = relay(&db, gate.clone()).lease(LEASE);
    let stopping = tokio::spawn(async move { one.run(async { drop(stopped.await) }).await });
    is_so(async || registered(&db).await == 1).await;
    commit(&db, &[event("a", 1)]).await;
    gate.arrival().await;
    // Nothing can be settled.
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
         create trigger refuse before update or delete on idempotency.outbox_lane execute function refuse()",
    )
    .execute(&*db)
    .await
    .unwrap();
    drop(stop);
    gate.open.add_permits(1);
    stopping.await.unwrap();
    sqlx::raw_sql("drop trigger refuse on idempotency.outbox_lane").execute(&*db).await.unwrap();
    is_so(async || sessions(&db, false).await == 0).await;
    let published = MemoryPublisher::default();
    assert_eq!(relay(&db, published.clone()).run_once().await.unwrap().published, 1);
    assert_eq!(numbers(&published), [1]);
}

#[tokio::test]
async fn a_relay_that_has_a_session_at_last_publishes_no_other_event_of_what_it_had_lost() {
    let db = database().await;
    let hold = no_new_session(&db).await;
    let (lost, kept, last, late) = (Gate::on("a"), Gate::on("b"), Gate::on("c"), Gate::on("a"));
    let gates = [lost.clone(), kept.clone(), last.clone()];
    let overtaken = relay(&db, move |event: Event| {
        let gate = match event.aggregate_id() {
            "b" => gates[1].clone(),
            "c" => gates[2].clone(),
            _ => gates[0].clone(),
        };
        async move { gate.publish(event).await }
    });
    // It has no room to claim again what it loses.
    let overtaken = overtaken.lease(LEASE).concurrency(3);
    let overtaken = tokio::spawn(async move { overtaken.run(std::future::pending()).await });
    is_so(async || kept_waiting(&db).await == 1).await;
    leap(Duration::from_secs(11)).await;
    commit(&db, &[event("a", 1), event("a", 2), event("b", 1), event("c", 1)]).await;
    lost.arrival().await;
    kept.arrival().await;
    last.arrival().await;
    let successor = overtake(&db, relay(&db, late.clone()).lease(LEASE), &late).await;
    hold.rollback().await.unwrap();
    // It renews what it has, and learns what is not its own any more.
    let renewed = "select relay is not null from idempotency.outbox_lane where aggregateid = 'b'";
    is_so(async || sqlx::query_scalar(renewed).fetch_one(&*db).await.unwrap()).await;
    last.open.add_permits(1);
    commit(&db, &[event("d", 1)]).await;
    is_so(async || of("d", &lost.published) == [1]).await;
    // By its own clock the lease is far from over, and its turn is not.
    lost.open.add_permits(10);
    is_so(async || !of("a", &lost.published).is_empty()).await;
    commit(&db, &[event("e", 1)]).await;
    is_so(async || of("e", &lost.published) == [1]).await;
    assert_eq!(of("a", &lost.published), [1]);
    kept.open.add_permits(10);
    late.open.add_permits(10);
    successor.await.unwrap();
    is_so(async || all_is_delivered(&db).await).await;
    overtaken.abort();
}
