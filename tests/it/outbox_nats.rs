//! Events to a real NATS server with JetStream. Where there is none, these tests say so.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tower_idempotency::outbox::{DeadLetters, Event, NatsPublisher};

use crate::support::database;
use crate::support::nats::{Nats, stored};
use crate::support::outbox::{commit, drain, event, losing, recovers, relay, time_passes, waiting, waits};

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
    commit(&db, &[event("a", 1)]).await;
    let relay = relay(&db, losing(NatsPublisher::new(nats.context().await)));
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
    // What its header asks for is not allowed here.
    commit(&db, &[event("a", 0).header("Nats-Rollup", "all")]).await;
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
        waits(&db, &relay).await;
    }
    nats.restart();
    recovers(&db, &relay).await;
    each_once_and_in_order(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_gets_each_event_once_and_in_order_when_it_goes_on() {
    let Some(nats) = Nats::start() else { return };
    let mut stream = nats.stream(&["test"]).await;
    let db = database().await;
    let relay = relay(&db, NatsPublisher::new(nats.context().await)).max_attempts(1);
    commit(&db, &[event("a", 1)]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    nats.stands_still();
    commit(&db, &[event("a", 2), event("a", 3)]).await;
    // Whose time is over first, the client's or the relay's.
    waits(&db, &relay).await;
    waits(&db, &relay.clone().publish_timeout(Duration::from_millis(100))).await;
    nats.goes_on();
    recovers(&db, &relay).await;
    each_once_and_in_order(&mut stream).await;
}

async fn each_once_and_in_order(stream: &mut stream::Stream) {
    assert_eq!(stored(stream).await, 3);
    for n in 1..=3 {
        let message = stream.get_raw_message(n).await.unwrap();
        assert_eq!(serde_json::from_slice::<u64>(&message.payload).unwrap(), n);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_never_connected_or_has_given_up_makes_no_dead_letter() {
    let Some(mut nats) = Nats::start() else { return };
    let db = database().await;
    // The callback goes when the client has ended.
    let (lives, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let options = async_nats::ConnectOptions::new()
        .max_reconnects(1)
        .reconnect_delay_callback(|_| Duration::ZERO)
        .event_callback(move |event| {
            lives.send(event).unwrap();
            std::future::ready(())
        });
    let client = options.connect(nats.url()).await.unwrap();
    nats.kill();
    while ended.recv().await.is_some() {}
    commit(&db, &[event("a", 1)]).await;
    waits(&db, &relay(&db, NatsPublisher::new(jetstream::new(client))).max_attempts(1)).await;

    // More than a server takes that has not said how much it takes.
    let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let client = options.connect("nats://127.0.0.1:1").await.unwrap();
    sqlx::raw_sql("truncate idempotency.outbox, idempotency.outbox_lane").execute(&*db).await.unwrap();
    commit(&db, &[Event::new("test", "a", "test.happened").bytes(vec![0; 2 << 20])]).await;
    waits(&db, &relay(&db, NatsPublisher::new(jetstream::new(client))).max_attempts(1)).await;
}

#[tokio::test]
async fn only_an_answer_about_the_event_counts_against_it() {
    let Some(nats) = Nats::start() else { return };
    let context = nats.context().await;
    // In a stream's place: not each answer can be had from a server that is well.
    let mut asked = context.client().subscribe("test").await.unwrap();
    let db = database().await;
    let relay = relay(&db, NatsPublisher::new(context.clone())).max_attempts(1);
    let refusal = |code: u64, number: u64| json!({"error": {"code": code, "err_code": number}}).to_string();
    for (answer, dead) in [
        ("nobody knows".to_owned(), 0),
        (refusal(409, 10158), 0),
        (refusal(429, 10167), 0),
        (refusal(500, 10047), 0),
        (refusal(503, 10023), 0),
        // No room for the account, no limits for it, and a sealed stream.
        (refusal(400, 10002), 0),
        (refusal(400, 10120), 0),
        (refusal(400, 10109), 0),
        (refusal(400, 10054), 1),
    ] {
        commit(&db, &[event("a", 1)]).await;
        let answered = async {
            let reply = asked.next().await.unwrap().reply.unwrap();
            context.client().publish(reply, answer.clone().into()).await.unwrap();
        };
        let (relayed, ()) = tokio::join!(relay.run_once(), answered);
        assert_eq!(relayed.unwrap().dead, dead, "{answer}");
        sqlx::raw_sql("truncate idempotency.outbox, idempotency.outbox_lane").execute(&*db).await.unwrap();
    }
}
