//! Events are committed with the effects, or not at all.

use axum::http::StatusCode;
use tower_idempotency::outbox::{self, Event, MemoryPublisher, OPERATION, OPERATION_ID, Payload};
use tower_idempotency::{Error, Idempotency, Tx};
use uuid::Uuid;

use crate::support::outbox::{commit, drain, event, number, relay, waiting};
use crate::support::{database, effect, effects, layer, operation_of, serve_behind};

#[tokio::test]
async fn an_event_of_a_rolled_back_transaction_does_not_exist() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let mut tx = db.begin().await.unwrap();
    outbox::publish(&mut tx, &event("a", 1)).await.unwrap();
    tx.rollback().await.unwrap();
    drain(&relay(&db, published.clone())).await;
    assert_eq!(published.events(), []);
}

#[tokio::test]
async fn what_arrives_is_what_was_published() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let json = serde_json::json!({"z": 1, "a": [true, null, "ü\u{1}"], "n": 0.1});
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let events = [
        Event::new("order", 17, "order.created").json(&json).unwrap().header("trace", "t-1"),
        Event::new("order", 17, "order.scanned").bytes(bytes.clone()),
        Event::new("order", 17, "order.closed"),
        Event::new("order", 17, "order.empty").bytes(""),
    ];
    commit(&db, &events).await;
    drain(&relay(&db, published.clone())).await;

    let arrived = published.events();
    assert_eq!(arrived.len(), 4);
    for (arrived, event) in arrived.iter().zip(&events) {
        assert_eq!(arrived.id(), event.id());
        assert_eq!(arrived.aggregate_type(), "order");
        assert_eq!(arrived.aggregate_id(), "17");
        assert_eq!(arrived.event_type(), event.event_type());
        assert!(arrived.headers().eq(event.headers()));
    }
    let value: serde_json::Value = serde_json::from_slice(arrived[0].payload().as_bytes()).unwrap();
    assert_eq!(value, json);
    assert_eq!(arrived[0].payload().content_type(), Some("application/json"));
    assert_eq!(arrived[1].payload(), &Payload::Bytes(bytes.into()));
    assert_eq!(arrived[2].payload(), &Payload::Empty);
    assert_eq!(arrived[3].payload(), &Payload::Bytes("".into()));
}

#[tokio::test]
async fn the_table_has_the_routers_columns_and_bytes_are_base64_in_it() {
    let db = database().await;
    let event = Event::new("order", 17, "order.scanned").bytes(vec![0xff; 100]);
    commit(&db, std::slice::from_ref(&event)).await;
    let row: (Uuid, String, String, String, serde_json::Value, String) = {
        let row: (Uuid, String, String, String, String, String) = sqlx::query_as(
            "select id, aggregatetype, aggregateid, type, payload::text, encoding from idempotency.outbox",
        )
        .fetch_one(&*db)
        .await
        .unwrap();
        (row.0, row.1, row.2, row.3, serde_json::from_str(&row.4).unwrap(), row.5)
    };
    assert_eq!(row.0, event.id());
    assert_eq!((row.1.as_str(), row.2.as_str(), row.3.as_str()), ("order", "17", "order.scanned"));
    assert_eq!(row.4, format!("{}/w==", "/".repeat(132)));
    assert_eq!(row.5, "base64");
    assert_eq!(event.id().get_version_num(), 7);
}

#[tokio::test]
async fn a_refused_event_leaves_the_transaction_as_it_was() {
    let db = database().await;
    let mut tx = db.begin().await.unwrap();
    effect(&mut tx, "kept").await.unwrap();
    for broken in [Event::new("", 1, "t"), Event::new("a", "x".repeat(256), "t"), Event::new("a", "\0", "t")]
    {
        assert!(outbox::publish(&mut tx, &broken).await.is_err());
    }
    outbox::publish_all(&mut tx, []).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(effects(&db, "kept").await, 1);
    assert_eq!(waiting(&db).await, 0);
}

#[tokio::test]
async fn an_id_can_be_published_once_while_it_waits() {
    let db = database().await;
    let id = Uuid::now_v7();
    commit(&db, &[event("a", 1).with_id(id)]).await;
    let mut connection = db.acquire().await.unwrap();
    let again = outbox::publish(&mut connection, &event("a", 2).with_id(id)).await.unwrap_err();
    let source = std::error::Error::source(&again).unwrap().downcast_ref::<sqlx::Error>().unwrap();
    assert_eq!(source.as_database_error().unwrap().code().unwrap(), "23505");
    assert_eq!(waiting(&db).await, 1);
}

#[tokio::test]
async fn a_large_list_keeps_its_order() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let events: Vec<Event> = (0..5_000).map(|n| event("a", n)).collect();
    commit(&db, &events).await;
    drain(&relay(&db, published.clone()).batch(700)).await;
    let numbers: Vec<i64> = published.events().iter().map(number).collect();
    assert_eq!(numbers, (0..5_000).collect::<Vec<_>>());
}

async fn publishing(idempotency: Idempotency, mut tx: Tx) -> Result<String, StatusCode> {
    outbox::publish(&mut tx, &event("a", 1)).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(idempotency.downstream_key("outbox").to_string())
}

#[tokio::test]
async fn an_event_of_an_idempotent_request_carries_its_operation() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let service = serve_behind(layer(&db), publishing).await;
    let first = service.post("/").key("k").send().await;
    service.post("/").key("k").send().await.replays(&first);
    drain(&relay(&db, published.clone())).await;

    let [event] = &published.events()[..] else { panic!("one request, one event") };
    let headers: Vec<_> = event.headers().collect();
    assert_eq!(headers, [(OPERATION, "test"), (OPERATION_ID, first.text())]);
}

#[tokio::test]
async fn an_event_of_an_operation_without_http_carries_it_too_and_a_given_header_stays() {
    let db = database().await;
    let published = MemoryPublisher::default();
    let operation = operation_of(&db, "jobs.run");
    operation
        .run("k", "input", async |mut tx| {
            outbox::publish(&mut tx, &event("a", 1).header(OPERATION, "mine")).await?;
            // Through the bare connection nobody knows whose it is.
            outbox::publish(&mut *tx, &event("a", 2)).await?;
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    drain(&relay(&db, published.clone())).await;
    let events = published.events();
    let names: Vec<_> = events[0].headers().collect();
    assert_eq!(names[0], (OPERATION, "mine"));
    assert_eq!(names[1].0, OPERATION_ID);
    assert_eq!(events[1].headers().count(), 0);
}
