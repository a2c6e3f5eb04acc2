//! What fails is tried again, given up at last, and holds nobody up.

use std::time::Duration;

use tower_idempotency::outbox::{DeadLetters, Event, PublishError};

use crate::support::database;
use crate::support::outbox::{Gate, Moody, commit, drain, event, lanes, relay, time_passes, waiting};

fn refused() -> PublishError {
    PublishError::failed("the broker refused it")
}

async fn attempts_of(pool: &sqlx::PgPool, aggregate: &str) -> (i32, i32, Option<String>) {
    sqlx::query_as(
        "select attempts, failures, last_error from idempotency.outbox_lane where aggregateid = $1",
    )
    .bind(aggregate)
    .fetch_one(pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_failed_event_is_tried_again_before_the_next_of_its_aggregate() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|event| (event.aggregate_id() == "a").then(refused));
    let relay = relay(&db, broker.clone());
    commit(&db, &[event("a", 1), event("a", 2), event("b", 1)]).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (1, 1, 0));
    assert_eq!(attempts_of(&db, "a").await, (1, 1, Some("the broker refused it".into())));
    time_passes(&db).await;
    relay.run_once().await.unwrap();
    assert_eq!(attempts_of(&db, "a").await.0, 2);
    broker.recovers();
    time_passes(&db).await;
    drain(&relay).await;
    assert_eq!(broker.numbers("a"), [1, 2]);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
}

#[tokio::test]
async fn it_is_not_tried_again_before_its_backoff_is_over() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|_| Some(refused().retry_after(Duration::from_secs(3_600))));
    let relay = relay(&db, broker.clone());
    commit(&db, &[event("a", 1)]).await;
    drain(&relay).await;
    commit(&db, &[event("a", 2)]).await;
    drain(&relay).await;
    assert_eq!(broker.attempts(), 1);
    time_passes(&db).await;
    drain(&relay).await;
    assert_eq!(broker.attempts(), 2);
}

#[tokio::test]
async fn attempts_belong_to_the_event_and_not_to_its_aggregate() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|_| Some(refused()));
    let relay = relay(&db, broker.clone()).max_attempts(3);
    commit(&db, &[event("a", 1), event("a", 2)]).await;
    for _ in 0..2 {
        relay.run_once().await.unwrap();
        time_passes(&db).await;
    }
    broker.fails(|event| (crate::support::outbox::number(event) == 2).then(refused));
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (1, 1, 0));
    assert_eq!(attempts_of(&db, "a").await.0, 1);
}

#[tokio::test]
async fn an_event_is_given_up_after_its_attempts_and_its_aggregate_goes_on() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|event| (crate::support::outbox::number(event) == 1).then(refused));
    let relay = relay(&db, broker.clone()).max_attempts(3);
    let poison = event("a", 1).header("h", "v");
    commit(&db, &[poison.clone(), event("a", 2)]).await;
    for _ in 0..3 {
        relay.run_once().await.unwrap();
        time_passes(&db).await;
    }
    drain(&relay).await;
    assert_eq!(broker.numbers("a"), [2]);
    assert_eq!((waiting(&db).await, lanes(&db).await), (0, 0));
    let letters = DeadLetters::new(db.clone()).list(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].event, poison);
    assert_eq!((letters[0].attempts, letters[0].error.as_str()), (3, "the broker refused it"));
}

#[tokio::test]
async fn a_rejected_event_is_given_up_at_once() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|_| Some(PublishError::rejected("too large\0")));
    commit(&db, &[event("a", 1)]).await;
    let relayed = relay(&db, broker.clone()).run_once().await.unwrap();
    assert_eq!((relayed.failed, relayed.dead), (0, 1));
    let letters = DeadLetters::new(db.clone()).list(10).await.unwrap();
    assert_eq!(letters[0].error, "too large\u{fffd}");
}

#[tokio::test]
async fn an_outage_makes_no_dead_letters() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|_| Some(PublishError::unavailable("connection refused")));
    let relay = relay(&db, broker.clone()).max_attempts(1);
    commit(&db, &[event("a", 1)]).await;
    for _ in 0..5 {
        relay.run_once().await.unwrap();
        time_passes(&db).await;
    }
    assert_eq!(attempts_of(&db, "a").await, (0, 5, Some("connection refused".into())));
    broker.recovers();
    drain(&relay).await;
    assert_eq!(broker.numbers("a"), [1]);
}

#[tokio::test]
async fn a_full_batch_of_poison_does_not_hide_a_good_event() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|event| event.aggregate_id().starts_with("poison").then(refused));
    let relay = relay(&db, broker.clone()).concurrency(8);
    let poison: Vec<Event> = (0..50).map(|n| event(&format!("poison-{n}"), 1)).collect();
    commit(&db, &poison).await;
    for _ in 0..10 {
        relay.run_once().await.unwrap();
        time_passes(&db).await;
    }
    let failed: i64 =
        sqlx::query_scalar("select count(*) from idempotency.outbox_lane where head is not null")
            .fetch_one(&*db)
            .await
            .unwrap();
    assert_eq!(failed, 50);
    // All fifty are due, and older.
    commit(&db, &[event("good", 1)]).await;
    relay.run_once().await.unwrap();
    assert_eq!(broker.numbers("good"), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_aggregate_holds_no_other_one_up() {
    let db = database().await;
    let gate = Gate::on("slow");
    let running = relay(&db, gate.clone()).concurrency(2);
    let running = tokio::spawn(async move { running.run(std::future::pending()).await });
    commit(&db, &[event("slow", 1)]).await;
    gate.arrival().await;
    for n in 0..20 {
        commit(&db, &[event(&n.to_string(), 1)]).await;
    }
    crate::support::eventually(std::panic::Location::caller(), async || {
        let left = waiting(&db).await;
        if left == 1 { Ok(()) } else { Err(format!("{left} are waiting behind one")) }
    })
    .await;
    running.abort();
}

#[tokio::test]
async fn a_publisher_that_panics_has_failed() {
    let db = database().await;
    let relay = relay(&db, |event: Event| {
        assert_ne!(event.aggregate_id(), "at once");
        async move {
            assert_ne!(event.aggregate_id(), "later");
            Ok(())
        }
    });
    commit(&db, &[event("at once", 1), event("later", 1), event("good", 1)]).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed), (1, 2));
    assert_eq!(attempts_of(&db, "later").await.2.unwrap(), "the publisher panicked");
    assert_eq!(attempts_of(&db, "at once").await.2.unwrap(), "the publisher panicked");
}

#[tokio::test]
async fn a_publisher_that_never_answers_has_failed() {
    let db = database().await;
    let gate = Gate::on("a");
    let relay = relay(&db, gate.clone()).publish_timeout(Duration::from_millis(50)).max_attempts(1);
    commit(&db, &[event("a", 1), event("b", 1)]).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed), (1, 1));
    // Not at the event: a broker that stands still does not answer either.
    assert_eq!(attempts_of(&db, "a").await, (0, 1, Some("the publisher did not answer in time".into())));
}

#[tokio::test]
async fn dead_letters_are_listed_requeued_and_purged() {
    let db = database().await;
    let broker = Moody::default();
    broker.fails(|_| Some(PublishError::rejected("no")));
    let relay = relay(&db, broker.clone());
    let events: Vec<Event> = (0..5).map(|n| event(&n.to_string(), n)).collect();
    for event in &events {
        commit(&db, std::slice::from_ref(event)).await;
        drain(&relay).await;
    }
    let letters = DeadLetters::new(db.clone());
    let ids = |letters: Vec<tower_idempotency::outbox::DeadLetter>| -> Vec<_> {
        letters.iter().map(|letter| letter.event.id()).collect()
    };
    let all: Vec<_> = events.iter().map(Event::id).collect();
    assert_eq!(ids(letters.list(2).await.unwrap()), all[..2]);
    assert_eq!(ids(letters.list_after(all[1], 10).await.unwrap()), all[2..]);

    assert_eq!(letters.purge_older_than(Duration::from_secs(3_600)).await.unwrap(), 0);
    assert_eq!(letters.purge(&all[..1]).await.unwrap(), 1);
    assert_eq!(letters.requeue(&all[..2]).await.unwrap(), 1);
    broker.recovers();
    drain(&relay).await;
    assert_eq!(broker.published.take()[0].id(), all[1]);
    // One that was published anew under its id stays.
    commit(&db, &[event("again", 9).with_id(all[2])]).await;
    assert_eq!(letters.requeue_all().await.unwrap(), 2);
    assert_eq!(ids(letters.list(10).await.unwrap()), [all[2]]);
    drain(&relay).await;
    assert_eq!(broker.published.events().len(), 3);
    assert_eq!(letters.purge_older_than(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(letters.list(10).await.unwrap(), []);
}
