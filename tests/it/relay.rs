//! Delivery: in order, without gaps, and soon.

use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::oneshot;
use tower_idempotency::Tx;
use tower_idempotency::outbox::{self, Event, MemoryPublisher, PublishError, Relay};

use crate::support::outbox::{Gate, commit, drain, event, lanes, number, relay, waiting};
use crate::support::{database, eventually, layer, no_transaction_is_left, serve_behind};

#[tokio::test]
async fn what_was_delivered_is_gone_and_nothing_is_left_of_it() {
    let db = database().await;
    let published = MemoryPublisher::default();
    commit(&db, &[event("a", 1), event("b", 1), event("a", 2)]).await;
    let relayed = relay(&db, published.clone()).run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (3, 0, 0));
    assert_eq!(waiting(&db).await, 0);
    assert_eq!(lanes(&db).await, 0);
    assert_eq!(relay(&db, published.clone()).run_once().await.unwrap(), Default::default());
    assert_eq!(published.events().len(), 3);
}

#[tokio::test]
async fn a_transaction_that_commits_late_is_not_skipped() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let relay = relay(&db, published.clone());
    let mut early = db.begin().await.unwrap();
    outbox::publish(&mut early, &event("early", 1)).await.unwrap();
    for n in 1..=3 {
        // Later numbers, committed first, and looked at while the early one is open.
        commit(&db, &[event("late", n)]).await;
        drain(&relay).await;
    }
    assert_eq!(published.events().len(), 3);
    early.commit().await.unwrap();
    drain(&relay).await;
    assert_eq!(published.events().last().unwrap().aggregate_id(), "early");
    assert_eq!(waiting(&db).await, 0);
}

#[tokio::test]
async fn a_late_commit_is_found_after_a_portion_of_a_backlog_was_looked_at() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let relay = relay(&db, published.clone()).concurrency(10_000);
    // Fewer of them: each look takes a portion of about a thousand.
    let mut early = db.begin().await.unwrap();
    outbox::publish(&mut early, &event("early", 1)).await.unwrap();
    for n in 0..3 {
        let events: Vec<Event> = (0..900).map(|m| event(&format!("{n}-{m}"), 1)).collect();
        commit(&db, &events).await;
    }
    let first = relay.run_once().await.unwrap();
    assert!(first.published < 2_700, "one look took all: {first:?}");
    early.commit().await.unwrap();
    drain(&relay).await;
    assert_eq!(published.events().len(), 2_701);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
}

#[tokio::test]
async fn an_event_committed_while_its_aggregate_is_in_hand_is_delivered_after_it() {
    let db = database().await;
    let gate = Gate::on("a");
    let one = relay(&db, gate.clone());
    commit(&db, &[event("a", 1)]).await;
    let first = tokio::spawn(async move { one.run_once().await.unwrap() });
    gate.arrival().await;
    commit(&db, &[event("a", 2)]).await;
    // Another relay sees it, and must not overtake.
    let other = relay(&db, gate.clone());
    assert_eq!(other.run_once().await.unwrap(), Default::default());
    gate.open.add_permits(2);
    first.await.unwrap();
    drain(&other).await;
    assert_eq!(gate.published.events().iter().map(number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
}

#[tokio::test]
async fn no_transaction_is_open_while_something_is_published() {
    let db = database().await;
    let gate = Gate::on("a");
    let relay = relay(&db, gate.clone());
    commit(&db, &[event("a", 1)]).await;
    let round = tokio::spawn(async move { relay.run_once().await.unwrap() });
    gate.arrival().await;
    no_transaction_is_left(&db).await;
    gate.open.add_permits(1);
    assert_eq!(round.await.unwrap().published, 1);
}

#[tokio::test]
async fn a_closure_is_a_publisher() {
    let db = database().await;
    commit(&db, &[event("a", 1)]).await;
    let relay = Relay::new(db.clone(), async |event: Event| {
        assert_eq!(event.aggregate_id(), "a");
        Ok::<(), PublishError>(())
    });
    assert_eq!(relay.run_once().await.unwrap().published, 1);
}

async fn create(mut tx: Tx) -> Result<StatusCode, StatusCode> {
    outbox::publish(&mut tx, &event("a", 1)).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(StatusCode::CREATED)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_wakes_the_relay_of_its_process() {
    let db = database().await;
    let (delivered, delivery) = oneshot::channel::<()>();
    let delivered = std::sync::Mutex::new(Some(delivered));
    let relay = Relay::new(db.clone(), move |_event: Event| {
        let delivered = delivered.lock().unwrap().take();
        async move {
            drop(delivered);
            Ok(())
        }
    })
    .poll_interval(Duration::from_secs(3_600));
    let running = tokio::spawn(async move { relay.run(std::future::pending()).await });
    // It is idle for an hour when it has looked, and looked again, and found nothing.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let service = serve_behind(layer(&db), create).await;
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    let woken = tokio::time::timeout(Duration::from_secs(20), delivery).await;
    assert!(woken.is_ok(), "nobody woke it");
    running.abort();
}

#[tokio::test]
async fn a_stopped_relay_finishes_what_is_being_published_and_gives_the_rest_back() {
    let db = database().await;
    let gate = Gate::on("a");
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (stopping, stops) = oneshot::channel::<()>();
    let one = relay(&db, gate.clone());
    let shutdown = async move {
        drop(stopped.await);
        drop(stopping);
    };
    let running = tokio::spawn(async move { one.run(shutdown).await });
    gate.arrival().await;
    drop(stop);
    // On one thread: when this is noticed here, the relay has noticed it.
    drop(stops.await);
    gate.open.add_permits(2);
    running.await.unwrap();
    assert_eq!(waiting(&db).await, 1);

    // At once, not when a lease ends.
    let other = relay(&db, gate.published.clone());
    assert_eq!(other.run_once().await.unwrap().published, 1);
    assert_eq!(gate.published.events().iter().map(number).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_relay_delivers_what_another_process_commits() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let running = relay(&db, published.clone());
    let running = tokio::spawn(async move { running.run(std::future::pending()).await });
    for n in 1..=20 {
        commit(&db, &[event("a", n)]).await;
    }
    eventually(std::panic::Location::caller(), async || {
        let left = (waiting(&db).await, lanes(&db).await);
        if left == (0, 0) { Ok(()) } else { Err(format!("left: {left:?}")) }
    })
    .await;
    let numbers: Vec<i64> = published.events().iter().map(number).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    running.abort();
}

#[tokio::test]
async fn an_idle_look_writes_nothing() {
    let db = database().await;
    let relay = relay(&db, MemoryPublisher::default());
    commit(&db, &[event("a", 1)]).await;
    drain(&relay).await;
    let look = "select ctid::text, xmax::text from idempotency.outbox_look";
    let before: (String, String) = sqlx::query_as(look).fetch_one(&*db).await.unwrap();
    for _ in 0..10 {
        relay.run_once().await.unwrap();
    }
    let after: (String, String) = sqlx::query_as(look).fetch_one(&*db).await.unwrap();
    assert_eq!(before, after, "the look's row was written or locked");
}

#[tokio::test]
async fn large_payloads_are_read_in_portions() {
    let db = database().await;
    let published = MemoryPublisher::default();
    // Bytes that no compression makes smaller.
    let mut state = 1_u64;
    let mut bytes = || {
        let words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.rotate_left(29).to_le_bytes()
        });
        words.take(400_000).flatten().collect::<Vec<u8>>()
    };
    let events: Vec<Event> = (0..8).map(|_| Event::new("test", "a", "large").bytes(bytes())).collect();
    commit(&db, &events).await;
    commit(&db, &[event("b", 1)]).await;
    let relay = relay(&db, published.clone());
    let first = relay.run_once().await.unwrap();
    assert!((2..9).contains(&first.published), "{first:?}");
    drain(&relay).await;
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
    let large: Vec<Event> = published.events().into_iter().filter(|e| e.aggregate_id() == "a").collect();
    assert_eq!(large, events);
}
