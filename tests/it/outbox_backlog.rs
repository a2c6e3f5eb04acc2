//! What waits costs a relay nothing.

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use tower_idempotency::outbox::MemoryPublisher;
use uuid::Uuid;

use crate::support::database;
use crate::support::outbox::{commit, event, relay};

/// 200,000 events of one transaction, each of an aggregate that is backed off.
async fn backlog(pool: &PgPool) {
    sqlx::raw_sql(
        "insert into idempotency.outbox (id, aggregatetype, aggregateid, type)
           select gen_random_uuid(), 'test', n::text, 'test.happened' from generate_series(1, 200000) n;
         insert into idempotency.outbox_lane (aggregatetype, aggregateid, ready_at, head, attempts, failures)
           select aggregatetype, aggregateid, now() + interval '1 day', id, 1, 1 from idempotency.outbox;
         analyze idempotency.outbox, idempotency.outbox_lane",
    )
    .execute(pool)
    .await
    .unwrap();
    // After that transaction: it has been looked at.
    sqlx::query("update idempotency.outbox_look set snapshot = pg_current_snapshot()")
        .execute(pool)
        .await
        .unwrap();
}

/// The relay's claim, or its plan, with looks at so many events.
async fn claim(pool: &PgPool, explain: &str, events: i64) -> Vec<PgRow> {
    let claim = include_str!("../../src/sql/outbox_claim.sql");
    sqlx::query(AssertSqlSafe(format!("{explain} {claim}")))
        .bind(Uuid::new_v4())
        .bind(sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 10_000_000 })
        .bind(64_i64)
        .bind(16_i64)
        .bind(events)
        .bind(None::<i32>)
        .persistent(false)
        .fetch_all(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_claim_past_a_backlog_of_one_large_transaction_is_not_worth_compiling() {
    let db = database().await;
    backlog(&db).await;
    let plan = claim(&db, "explain", 1_000).await.swap_remove(0);
    let plan: String = plan.try_get(0).unwrap();
    let cost: f64 = plan.split("..").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    // `jit_above_cost`, by default.
    assert!(cost < 100_000.0, "{plan}");
}

#[tokio::test]
async fn a_new_event_is_found_behind_a_backlog() {
    let db = database().await;
    backlog(&db).await;
    let published = MemoryPublisher::default();
    commit(&db, &[event("new", 1)]).await;
    assert_eq!(relay(&db, published.clone()).run_once().await.unwrap().published, 1);
    assert_eq!(published.events()[0].aggregate_id(), "new");
}

/// Which is why the next one follows at once.
#[tokio::test]
async fn a_look_that_was_cut_off_says_that_there_is_more() {
    let db = database().await;
    for aggregate in ["a", "b", "c"] {
        commit(&db, &[event(aggregate, 1)]).await;
    }
    for (lanes, is_more) in [(2, true), (1, false), (0, false)] {
        let rows = claim(&db, "", 1).await;
        let (found, more): (Vec<_>, Vec<_>) =
            rows.iter().partition(|row| row.get::<Option<&str>, _>("aggregatetype").is_some());
        assert_eq!(found.len(), lanes);
        let more: Vec<&str> = more.iter().map(|row| row.get("aggregateid")).collect();
        assert_eq!(more, if is_more { vec!["more"] } else { vec![] });
    }
}
