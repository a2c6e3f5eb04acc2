//! Events to a real NATS server with JetStream. Where there is none, these tests say so.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tower_idempotency::outbox::{DeadLetters, Event, NatsPublisher, PublishError, Publisher};

use crate::support::nats::{Nats, stored};
use crate::support::outbox::{commit, drain, event, relay, time_passes, waiting};
use crate::support::{database, eventually};

#[tokio::test]
async fn an_event_is_stored_under_its_subject_with_its_id_and_all_it_says() {
    let Some(nats) = Nats::start() else { return };
    let stream = nats.stream(&["order", "shop.>"]).await;
    let db = database().await;
    let placed = Event::new("order", "7 \u{e9}", "order.placed")
        .json(&json!({"n": 1}))
        .unwrap()
        .header("x-trace", "t1")
        .header("nats-msg-id", "another")
        .header("Event-Type", "another");
    let gone = Event::new("order", 8, "order.gone").bytes(&b"\xff\x00"[..]).header("content-type", "a/b");
    commit(&db, std::slice::from_ref(&placed)).await;
    drain(&relay(&db, NatsPublisher::new(nats.context().await))).await;
    let by_function = NatsPublisher::new(nats.context().await)
        .subject(|event| format!("shop.{}.{}", event.aggregate_type(), event.aggregate_id()));
    commit(&db, std::slice::from_ref(&gone)).await;
    drain(&relay(&db, by_function)).await;
    assert_eq!(waiting(&db).await, 0);

    let message = stream.get_raw_message(1).await.unwrap();
    assert_eq!(message.subject.as_str(), "order");
    assert_eq!(serde_json::from_slice::<Value>(&message.payload).unwrap(), json!({"n": 1}));
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id"), Some(placed.id().to_string()));
    let expected = ["order.placed", "order", "7 \u{e9}", "application/json", "t1"];
    let names = ["event-type", "aggregate-type", "aggregate-id", "content-type", "x-trace"];
    assert_eq!(names.map(|name| header(name).unwrap()), expected);
    assert_eq!((header("nats-msg-id"), header("Event-Type")), (None, None));

    let message = stream.get_raw_message(2).await.unwrap();
    assert_eq!(message.subject.as_str(), "shop.order.8");
    assert_eq!(&message.payload[..], b"\xff\x00");
    assert_eq!(message.headers.get("content-type").unwrap().as_str(), "a/b");
}

#[tokio::test]
async fn an_event_that_is_published_again_is_stored_once() {
    let Some(nats) = Nats::start() else { return };
    let mut stream = nats.stream(&["test"]).await;
    let db = database().await;
    let publisher = Arc::new(NatsPublisher::new(nats.context().await));
    let is_lost = Arc::new(AtomicBool::new(true));
    let losing = move |event: Event| {
        let (publisher, is_lost) = (Arc::clone(&publisher), Arc::clone(&is_lost));
        async move {
            publisher.publish(event).await?;
            match is_lost.swap(false, Ordering::SeqCst) {
                true => Err(PublishError::unavailable("the acknowledgement was lost")),
                false => Ok(()),
            }
        }
    };
    commit(&db, &[event("a", 1)]).await;
    let relay = relay(&db, losing);
    assert_eq!(relay.run_once().await.unwrap().failed, 1);
    assert_eq!(stored(&mut stream).await, 1);
    time_passes(&db).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    assert_eq!((waiting(&db).await, stored(&mut stream).await), (0, 1));
}

#[tokio::test]
async fn without_a_stream_for_its_subject_an_event_waits_and_is_no_dead_letter() {
    let Some(nats) = Nats::start() else { return };
    let db = database().await;
    let relay = relay(&db, NatsPublisher::new(nats.context().await)).max_attempts(1);
    commit(&db, &[event("a", 1)]).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 1, 0));
    assert_eq!(waiting(&db).await, 1);
    let mut stream = nats.stream(&["test"]).await;
    time_passes(&db).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    assert_eq!((waiting(&db).await, stored(&mut stream).await), (0, 1));
}

#[tokio::test]
async fn a_stream_that_refuses_makes_a_dead_letter_in_the_end_and_one_that_is_full_does_not() {
    let Some(nats) = Nats::start() else { return };
    let context = nats.context().await;
    let config = async_nats::jetstream::stream::Config {
        name: "small".to_owned(),
        subjects: vec!["test".to_owned()],
        max_messages: 1,
        max_message_size: 200,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    let mut stream = context.create_stream(config).await.unwrap();
    let db = database().await;
    let relay = relay(&db, NatsPublisher::new(context)).max_attempts(1);
    commit(&db, &[Event::new("test", "large", "test.happened").bytes(vec![0; 1_000])]).await;
    assert_eq!(relay.run_once().await.unwrap().dead, 1);
    commit(&db, &[event("a", 1)]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    commit(&db, &[event("a", 2)]).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.failed, relayed.dead), (1, 0));
    stream.purge().await.unwrap();
    time_passes(&db).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    assert_eq!(stored(&mut stream).await, 1);
}

#[tokio::test]
async fn what_nats_cannot_carry_is_a_dead_letter_at_once_and_its_aggregate_goes_on() {
    let Some(nats) = Nats::start() else { return };
    let mut stream = nats.stream(&["test"]).await;
    let db = database().await;
    let mut poison: Vec<Event> = ["a b", "a..b", ".a", "a.", "*", "a.>", "a\tb"]
        .map(|subject| Event::new("test", "a", "test.happened").header("subject", subject))
        .into();
    poison.push(event("a", 1).header("no:name", "x"));
    poison.push(event("a", 1).header("x", "a\r\nNats-Msg-Id: b"));
    poison.push(Event::new("test", "a", "test.happened").bytes(vec![0; 2 << 20]));
    let publisher = NatsPublisher::new(nats.context().await).subject(|event| {
        let subject = event.headers().find(|(name, _)| *name == "subject");
        subject.map_or("test", |(_, subject)| subject).to_owned()
    });
    commit(&db, &poison).await;
    commit(&db, &[event("a", 2)]).await;
    drain(&relay(&db, publisher)).await;
    let letters = DeadLetters::new(db.clone()).list(100).await.unwrap();
    assert!(letters.iter().all(|letter| letter.attempts == 1), "{letters:?}");
    assert_eq!(letters.len(), poison.len());
    assert_eq!((waiting(&db).await, stored(&mut stream).await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_comes_back_gets_each_event_once_and_in_order() {
    let Some(mut nats) = Nats::start() else { return };
    let mut stream = nats.stream(&["test"]).await;
    let db = database().await;
    let relay = relay(&db, NatsPublisher::new(nats.context().await)).max_attempts(1);
    commit(&db, &[event("a", 1)]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    nats.kill();
    commit(&db, &[event("a", 2), event("a", 3)]).await;
    // No acknowledgement in time, however often.
    for _ in 0..2 {
        time_passes(&db).await;
        let relayed = relay.run_once().await.unwrap();
        assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 1, 0));
    }
    nats.restart();
    eventually(Location::caller(), async || {
        time_passes(&db).await;
        relay.run_once().await.unwrap();
        let waiting = waiting(&db).await;
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} wait")) }
    })
    .await;
    assert_eq!(stored(&mut stream).await, 3);
    for n in 1..=3 {
        let message = stream.get_raw_message(n).await.unwrap();
        assert_eq!(serde_json::from_slice::<u64>(&message.payload).unwrap(), n);
    }
}
