//! Who reads the write-ahead log sees what Debezium's outbox event router expects.

use devpg::Server;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::outbox::{Event, PublishError};

use crate::support::outbox::{Moody, commit, drain, event, relay, waiting};

const TABLE: &str = "table idempotency.outbox: ";

async fn changes(pool: &PgPool) -> Vec<String> {
    let all: Vec<String> =
        sqlx::query_scalar("select data from pg_logical_slot_get_changes('cdc', null, null)")
            .fetch_all(pool)
            .await
            .unwrap();
    all.into_iter().filter_map(|change| change.strip_prefix(TABLE).map(Into::into)).collect()
}

#[tokio::test]
async fn each_event_is_one_insert_and_one_delete_and_never_an_update() {
    // A slot gives what has been flushed: all that was committed.
    let server = Server::builder().setting("wal_level", "logical").setting("synchronous_commit", "on");
    let server = tokio::task::spawn_blocking(|| server.start().unwrap());
    let server = server.await.unwrap();
    let pool =
        PgPoolOptions::new().max_connections(5).connect_with(server.options("postgres")).await.unwrap();
    tower_idempotency::migrate(&pool).await.unwrap();
    sqlx::query("select pg_create_logical_replication_slot('cdc', 'test_decoding')")
        .execute(&pool)
        .await
        .unwrap();

    let published = Moody::default();
    published.fails(|event| match event.aggregate_id() {
        "failing" => Some(PublishError::failed("no")),
        "dead" => Some(PublishError::rejected("no")),
        _ => None,
    });
    let events: Vec<Event> =
        ["good", "good", "failing", "dead"].into_iter().map(|aggregate| event(aggregate, 7)).collect();
    commit(&pool, &events).await;
    let relay = relay(&pool, published.clone());
    drain(&relay).await;
    published.recovers();
    crate::support::outbox::time_passes(&pool).await;
    drain(&relay).await;
    assert_eq!(waiting(&pool).await, 0);

    let changes = changes(&pool).await;
    for event in &events {
        let id = format!("id[uuid]:'{}'", event.id());
        let [insert, delete] = &changes.iter().filter(|c| c.contains(&id)).collect::<Vec<_>>()[..] else {
            panic!("{id}: {changes:?}")
        };
        let columns = format!(
            "INSERT: {id} aggregatetype[text]:'test' aggregateid[text]:'{}' type[text]:'test.happened' payload[jsonb]:'7' ",
            event.aggregate_id()
        );
        assert!(insert.starts_with(&columns), "{insert}");
        assert_eq!(**delete, format!("DELETE: {id}"));
    }
    assert_eq!(changes.len(), 2 * events.len(), "{changes:?}");
}
