//! What becomes of events while a real RabbitMQ is away, or in trouble.

use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinHandle;
use tower_idempotency::outbox::{Event, RabbitMqPublisher, Relay};

use crate::support::database;
use crate::support::outbox::{commit, event, recovers, relay, time_passes, waits};
use crate::support::rabbitmq::{LARGEST_MESSAGE, RabbitMq, found, ids, queue, uri, without_repetitions};
use crate::support::wire::Wire;

/// [`waits`], while the test does something to the broker.
fn waits_beside(db: &PgPool, relay: &Relay) -> JoinHandle<()> {
    let (db, relay) = (db.clone(), relay.clone());
    tokio::spawn(async move { waits(&db, &relay).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_comes_back_has_each_event_in_order() {
    let Some(mut server) = RabbitMq::start() else { return };
    let (connection, channel) = server.channel().await;
    queue(&channel, "test").await;
    server.has_kept("test").await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(server.uri(), "")).max_attempts(1);
    let events = [event("a", 1), event("a", 2), event("a", 3)];
    commit(&db, &events[..1]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    server.kill();
    drop((connection, channel));
    commit(&db, &events[1..]).await;
    for _ in 0..2 {
        waits(&db, &relay).await;
    }
    server.restart();
    recovers(&db, &relay).await;
    let (_connection, channel) = server.channel().await;
    // The first was confirmed before the kill.
    assert_eq!(found(&channel, "test").await, ids(&events));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_when_the_broker_stands_still_or_dies_is_no_dead_letter() {
    let Some(mut server) = RabbitMq::start() else { return };
    let (connection, channel) = server.channel().await;
    queue(&channel, "test").await;
    server.has_kept("test").await;
    let db = database().await;
    let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let publisher = RabbitMqPublisher::new(server.uri(), "").routing_key(move |event| {
        begins.send(()).unwrap();
        event.aggregate_type().to_owned()
    });
    let relay = relay(&db, publisher).max_attempts(1);
    let events = [event("a", 1), event("a", 2), event("a", 3), event("a", 4)];
    commit(&db, &events[..1]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    server.stands_still();
    commit(&db, &events[1..3]).await;
    // First over the connection that there is, then over none: none is made.
    for _ in 0..2 {
        waits(&db, &relay.clone().publish_timeout(Duration::from_millis(300))).await;
    }
    server.goes_on();
    recovers(&db, &relay).await;
    drop((connection, channel));

    server.stands_still();
    commit(&db, &events[3..]).await;
    while begun.try_recv().is_ok() {}
    let under_way = waits_beside(&db, &relay);
    begun.recv().await.unwrap();
    server.kill();
    under_way.await.unwrap();
    server.restart();
    recovers(&db, &relay).await;
    let (_connection, channel) = server.channel().await;
    // What had been given up was there when it came to itself, and came again.
    assert_eq!(without_repetitions(found(&channel, "test").await), ids(&events));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_takes_nothing_for_want_of_room_is_not_connected_to_again_and_again() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    queue(&channel, "test").await;
    let wire = Wire::to(server.port()).await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(uri(wire.port), "")).max_attempts(1);
    let events = [event("a", 1), event("a", 2)];
    commit(&db, &events[..1]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    server.has_no_room();
    commit(&db, &events[1..]).await;
    // By what becomes of the first one the broker says so.
    for _ in 0..3 {
        waits(&db, &relay.clone().publish_timeout(Duration::from_secs(3))).await;
    }
    assert_eq!(wire.made(), 1);
    let why = sqlx::query_scalar("select last_error from idempotency.outbox_lane").fetch_one(&*db);
    let why: String = why.await.unwrap();
    assert!(why.contains("takes nothing"), "{why}");
    server.has_room();
    recovers(&db, &relay).await;
    assert_eq!(without_repetitions(found(&channel, "test").await), ids(&events));
}

/// One that is let go is not ended: lapin goes on in a thread of its own.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_broker_says_nothing_one_connection_is_begun_for_all() {
    let says_nothing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let wire = Wire::to(says_nothing.local_addr().unwrap().port()).await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(uri(wire.port), "")).max_attempts(1);
    let relay = relay.publish_timeout(Duration::from_millis(300));
    let events: Vec<Event> = (0..8).map(|n| event(&n.to_string(), n)).collect();
    commit(&db, &events).await;
    for _ in 0..3 {
        time_passes(&db).await;
        let relayed = relay.run_once().await.unwrap();
        assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 8, 0));
    }
    assert_eq!(wire.made(), 1);
}

/// lapin ends a connection over a refusal that comes while it closes the channel, and tells it all
/// that are on their way.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_one_event_that_comes_too_late_counts_against_no_other() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    for name in ["test", "stuck"] {
        queue(&channel, name).await;
    }
    server.never_confirms("stuck");
    let db = database().await;
    let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let publisher = RabbitMqPublisher::new(server.uri(), "").routing_key(move |event| {
        begins.send(()).unwrap();
        event.aggregate_type().to_owned()
    });
    let relay = relay(&db, publisher).max_attempts(1);
    // It depends on what lapin comes to first.
    for _ in 0..24 {
        // Some channels: none can be had of a node that stands still.
        let others: Vec<Event> = (0..8).map(|n| event(&n.to_string(), n)).collect();
        commit(&db, &others).await;
        assert_eq!(relay.run_once().await.unwrap().published, 8);
        while begun.try_recv().is_ok() {}
        commit(&db, &[Event::new("stuck", 1, "test.happened")]).await;
        let under_way = tokio::spawn({
            let relay = relay.clone();
            async move { relay.run_once().await.unwrap() }
        });
        begun.recv().await.unwrap();
        server.stands_still();
        let large = Event::new("test", "large", "test.happened").bytes(vec![0; LARGEST_MESSAGE + 1]);
        commit(&db, &[large]).await;
        let relayed = relay.clone().publish_timeout(Duration::from_millis(200)).run_once().await.unwrap();
        assert_eq!((relayed.failed, relayed.dead), (1, 0));
        server.goes_on();
        let relayed = under_way.await.unwrap();
        assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 1, 0));
        sqlx::raw_sql("truncate idempotency.outbox, idempotency.outbox_lane").execute(&*db).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_or_falls_silent_is_replaced_and_makes_no_dead_letter() {
    let Some(server) = RabbitMq::start() else { return };
    let (_connection, channel) = server.channel().await;
    queue(&channel, "test").await;
    let wire = Wire::to(server.port()).await;
    let db = database().await;
    let relay = relay(&db, RabbitMqPublisher::new(uri(wire.port), "")).max_attempts(1);
    let events = [event("a", 1), event("a", 2), event("a", 3)];
    commit(&db, &events[..1]).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);

    wire.falls_silent();
    commit(&db, &events[1..2]).await;
    let under_way = waits_beside(&db, &relay);
    wire.swallows().await;
    wire.cut();
    under_way.await.unwrap();
    recovers(&db, &relay).await;

    wire.falls_silent();
    commit(&db, &events[2..]).await;
    waits(&db, &relay.clone().publish_timeout(Duration::from_millis(300))).await;
    time_passes(&db).await;
    // At once: the silent connection is asked nothing more.
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    assert_eq!(found(&channel, "test").await, ids(&events));
}
