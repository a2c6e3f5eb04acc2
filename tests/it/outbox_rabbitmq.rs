//! Events to a real RabbitMQ. Where there is none, these tests say so.

use std::panic::Location;

use lapin::options::QueueBindOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use serde_json::{Value, json};
use tower_idempotency::outbox::{DeadLetters, Event, RabbitMqPublisher};

use crate::support::outbox::{commit, drain, event, relay, time_passes, waiting};
use crate::support::rabbitmq::{LARGEST_MESSAGE, RabbitMq, found, ids, next, queue};
use crate::support::{database, eventually};

fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_says_what_the_event_says_and_is_persistent() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    queue(&channel, "order.placed").await;
    let db = database().await;
    let placed = Event::new("order", "7 \u{e9}", "order.placed")
        .json(&json!({"n": 1}))
        .unwrap()
        .header("x-trace", "t1")
        .header("aggregate-id", "another");
    let bytes =
        Event::new("order", "7 \u{e9}", "order.placed").bytes(&b"\xff\x00"[..]).header("Content-Type", "a/b");
    commit(&db, &[placed.clone(), bytes.clone()]).await;
    let publisher =
        RabbitMqPublisher::new(server.uri(), "").routing_key(|event| event.event_type().to_owned());
    drain(&relay(&db, publisher)).await;
    assert_eq!(waiting(&db).await, 0);

    let (properties, body) = next(&channel, "order.placed").await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"n": 1}));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), placed.id().to_string());
    assert_eq!(properties.delivery_mode(), &Some(2));
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    let names = ["aggregate-type", "aggregate-id", "x-trace"];
    assert_eq!(names.map(|name| header(&properties, name).unwrap()), ["order", "7 \u{e9}", "t1"]);
    let (properties, body) = next(&channel, "order.placed").await.unwrap();
    assert_eq!((&body[..], properties.content_type().as_ref().unwrap().as_str()), (&b"\xff\x00"[..], "a/b"));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), bytes.id().to_string());
    assert!(next(&channel, "order.placed").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_reaches_no_queue_is_not_delivered_and_waits() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(server.uri(), "events")).max_attempts(1);
    // Twenty side by side: one answer must not be taken for another.
    let events: Vec<Event> = (0..20).map(|n| event(&n.to_string(), n)).collect();
    commit(&db, &events).await;
    let failed = async |what: &str| {
        time_passes(&db).await;
        // After a failure the relay takes fewer at a time.
        let relayed = relay.run_once().await.unwrap();
        assert!(relayed.failed > 0 && (relayed.published, relayed.dead) == (0, 0), "{what}: {relayed:?}");
        assert_eq!(waiting(&db).await, 20, "{what}");
    };
    failed("no exchange").await;
    let (kind, options) = (ExchangeKind::Topic, Default::default());
    channel.exchange_declare("events".into(), kind, options, FieldTable::default()).await.unwrap();
    failed("no queue").await;
    queue(&channel, "all").await;
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind("all".into(), "events".into(), "test".into(), options, none).await.unwrap();
    // Of another type, and still without a queue.
    commit(&db, &[Event::new("other", 1, "other.happened")]).await;
    eventually(Location::caller(), async || {
        time_passes(&db).await;
        relay.run_once().await.unwrap();
        let waiting = waiting(&db).await;
        if waiting == 1 { Ok(()) } else { Err(format!("{waiting} wait")) }
    })
    .await;
    let (mut found, mut expected) = (found(&channel, "all").await, ids(&events));
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_refuses_is_given_up_after_its_attempts_and_costs_the_others_nothing() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    queue(&channel, "test").await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(server.uri(), "")).max_attempts(2);
    let too_large = Event::new("test", "large", "test.happened").bytes(vec![0; LARGEST_MESSAGE + 1]);
    let long_header = event("long", 1).header("x", "x".repeat(FRAME_MAX));
    let others: Vec<Event> = (0..20).map(|n| event(&n.to_string(), n)).collect();
    commit(&db, &[too_large.clone(), long_header.clone()]).await;
    commit(&db, &others).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (20, 1, 1));
    time_passes(&db).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 0, 1));
    let letters = DeadLetters::new(db.clone()).list(10).await.unwrap();
    let attempts = |of: &Event| letters.iter().find(|letter| letter.event.id() == of.id()).unwrap().attempts;
    assert_eq!((attempts(&too_large), attempts(&long_header)), (2, 1));
    let (mut found, mut expected) = (found(&channel, "test").await, ids(&others));
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    // The largest that fits does.
    let fits = Event::new("test", "a", "test.happened").header("x", "x".repeat(FRAME_MAX - ROOM));
    commit(&db, &[fits]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
}

#[tokio::test]
async fn what_rabbitmq_cannot_carry_is_a_dead_letter_at_once() {
    let db = database().await;
    let publisher = RabbitMqPublisher::new("amqp://127.0.0.1:1/%2f", "")
        .routing_key(|event| if event.aggregate_id() == "long" { "k".repeat(256) } else { "k".to_owned() });
    commit(&db, &[event("long", 1), event("a", 1).header("n".repeat(256), "x")]).await;
    assert_eq!(relay(&db, publisher).run_once().await.unwrap().dead, 2);
    let letters = DeadLetters::new(db.clone()).list(10).await.unwrap();
    assert!(letters.iter().all(|letter| letter.error.contains("255")), "{letters:?}");
    let shown = format!("{:?}", RabbitMqPublisher::new("amqp://u:secret@h/", "events"));
    assert!(shown.contains("events") && !shown.contains("secret"), "{shown}");
}

/// What a node of RabbitMQ offers a client.
const FRAME_MAX: usize = 131_072;

/// What the frame of an event has beside its one header's value: see `frame_of`.
const ROOM: usize = 27
    + 1
    + "test.happened".len()
    + 1
    + 36
    + 6
    + 1
    + 6
    + "aggregate-type".len()
    + "test".len()
    + 6
    + "aggregate-id".len()
    + "a".len();
