//! The sweeper deletes in bounded batches, beside others, and nothing that lives.

use std::time::Duration;

use sqlx::{Connection as _, PgPool};
use tokio::sync::oneshot;
use tower_idempotency::{Sweeper, Swept};

use crate::support::{Logs, database, eventually, no_transaction_is_left};

/// Inserts records whose keys are the name with 1 to `count`, in a state, that expire so much later
/// than now, the last one first.
async fn insert(
    connection: &mut sqlx::PgConnection,
    name: &str,
    count: i32,
    state: &str,
    expires: &str,
    tombstone: Option<&str>,
) {
    let settled = matches!(state, "completed" | "failed");
    sqlx::query(
        "insert into idempotency.record
           (tenant_id, operation, idempotency_key, claim_id, fingerprint, state, status, headers, body,
            expires_at, tombstone)
         select 't', 'o', $1 || at, gen_random_uuid(), '\\x01', $3, $4, $5, $6,
                now() + $7::text::interval - at * interval '1 microsecond', $8::text::interval
         from generate_series(1, $2) at",
    )
    .bind(name)
    .bind(count)
    .bind(state)
    .bind(settled.then_some(200_i16))
    .bind(settled.then_some(&b"\x01"[..]))
    .bind(settled.then_some(&b"body"[..]))
    .bind(expires)
    .bind(tombstone)
    .execute(connection)
    .await
    .unwrap();
}

async fn expired(pool: &PgPool, count: i32) {
    insert(&mut pool.acquire().await.unwrap(), "expired", count, "completed", "-1 hour", None).await;
}

async fn keys(pool: &PgPool) -> Vec<String> {
    let keys = sqlx::query_scalar("select idempotency_key from idempotency.record order by 1");
    keys.fetch_all(pool).await.unwrap()
}

fn sum(swept: Swept) -> u64 {
    swept.deleted + swept.tombstoned
}

#[tokio::test]
async fn a_batch_is_bounded_and_takes_the_oldest() {
    let db = database().await;
    expired(&db, 25).await;
    let sweeper = Sweeper::new(db.clone()).batch(10);
    let mut deleted = Vec::new();
    for _ in 0..4 {
        deleted.push(sweeper.sweep_once().await.unwrap().deleted);
    }
    assert_eq!(deleted, [10, 10, 5, 0]);

    expired(&db, 3).await;
    assert_eq!(Sweeper::new(db.clone()).batch(2).sweep_once().await.unwrap().deleted, 2);
    assert_eq!(keys(&db).await, ["expired1"]);
    // No batch at all would never end.
    let none = Sweeper::new(db.clone()).batch(0);
    let swept = tokio::time::timeout(Duration::from_secs(10), none.run_once()).await;
    assert_eq!(sum(swept.expect("it goes on").unwrap()), 1);
}

#[tokio::test]
async fn a_batch_is_bounded_under_every_plan() {
    let db = database().await;
    let plans =
        ["enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_indexscan", "enable_seqscan"];
    for off in plans {
        expired(&db, 200).await;
        let options = db.options().options([(off, "off"), ("enable_bitmapscan", "off")]);
        let pool =
            sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let sweeper = Sweeper::new(pool).batch(30);
        assert_eq!(sweeper.sweep_once().await.unwrap().deleted, 30, "{off}");
        assert_eq!(keys(&db).await.len(), 170, "{off}");
        assert_eq!(sweeper.run_once().await.unwrap().deleted, 170, "{off}");
    }
}

#[tokio::test]
async fn run_once_sweeps_all_that_is_due_and_says_what_it_did() {
    let db = database().await;
    expired(&db, 25).await;
    let mut connection = db.acquire().await.unwrap();
    insert(&mut connection, "failed", 5, "failed", "-1 hour", None).await;
    insert(&mut connection, "stone", 7, "tombstone", "-1 hour", None).await;
    insert(&mut connection, "turns", 12, "completed", "-1 hour", Some("1 day")).await;
    insert(&mut connection, "past", 4, "completed", "-2 days", Some("1 day")).await;
    let swept = Sweeper::new(db.clone()).batch(10).run_once().await.unwrap();
    assert_eq!((swept.deleted, swept.tombstoned), (25 + 5 + 7 + 4, 12));
    // What is left refuses, and keeps neither response nor more than its key and fingerprint.
    let stones: Vec<bool> = sqlx::query_scalar(
        "select state = 'tombstone' and status is null and headers is null and body is null and
                tombstone is null and fingerprint = '\\x01' and
                expires_at between now() + interval '22 hours' and now() + interval '23 hours 1 second'
         from idempotency.record",
    )
    .fetch_all(&*db)
    .await
    .unwrap();
    assert_eq!(stones, [true; 12]);
    assert_eq!(sum(Sweeper::new(db.clone()).run_once().await.unwrap()), 0);
}

#[tokio::test]
async fn a_live_or_pending_row_is_never_swept() {
    let db = database().await;
    let mut connection = db.acquire().await.unwrap();
    for state in ["completed", "failed", "tombstone", "pending"] {
        insert(&mut connection, state, 1, state, "1 hour", None).await;
    }
    // A lease that outlives its row's time: its owner is at work.
    insert(&mut connection, "leased", 1, "pending", "-1 hour", None).await;
    let lease = "update idempotency.record set lease_until = now() + interval '1 minute' where idempotency_key = 'leased1'";
    sqlx::query(lease).execute(&mut *connection).await.unwrap();
    // An open claim, whose retention has passed while its handler runs.
    let mut open = db.begin().await.unwrap();
    insert(&mut open, "open", 1, "pending", "-1 hour", None).await;
    let before = keys(&db).await;
    assert_eq!(sum(Sweeper::new(db.clone()).run_once().await.unwrap()), 0);
    assert_eq!(keys(&db).await, before);
    open.commit().await.unwrap();
    assert_eq!(before.len() + 1, keys(&db).await.len());
}

#[tokio::test]
async fn a_row_that_is_being_taken_over_is_left_alone_and_not_waited_for() {
    let db = database().await;
    expired(&db, 2).await;
    // As a request that has claimed an expired key does.
    let mut claim = db.begin().await.unwrap();
    let taken = "update idempotency.record set state = 'pending', status = null, headers = null, body = null,
                   expires_at = now() + interval '1 day' where idempotency_key = 'expired1'";
    sqlx::query(taken).execute(&mut *claim).await.unwrap();
    let swept = tokio::time::timeout(Duration::from_secs(5), Sweeper::new(db.clone()).run_once()).await;
    assert_eq!(swept.expect("the sweeper waited for a lock").unwrap().deleted, 1);
    claim.commit().await.unwrap();
    assert_eq!(sum(Sweeper::new(db.clone()).run_once().await.unwrap()), 0);
    assert_eq!(keys(&db).await, ["expired1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sweepers_at_once_take_every_row_once_and_none_waits() {
    let db = database().await;
    expired(&db, 2_000).await;
    // A third one, in the middle of its batch.
    let mut third = sqlx::PgConnection::connect_with(&db.options()).await.unwrap();
    let mut batch = third.begin().await.unwrap();
    let locked = "select idempotency_key from idempotency.record order by expires_at limit 100 for update";
    sqlx::query(locked).execute(&mut *batch).await.unwrap();
    let sweeper = Sweeper::new(db.clone()).batch(50);
    let both =
        async { tokio::join!(tokio::spawn(sweep(sweeper.clone())), tokio::spawn(sweep(sweeper.clone()))) };
    let (one, other) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("a sweeper waited");
    assert_eq!(one.unwrap() + other.unwrap(), 1_900);
    assert_eq!(keys(&db).await.len(), 100);
    batch.rollback().await.unwrap();
    assert_eq!(sum(sweeper.run_once().await.unwrap()), 100);
    no_transaction_is_left(&db).await;
}

async fn sweep(sweeper: Sweeper) -> u64 {
    sum(sweeper.run_once().await.unwrap())
}

#[tokio::test]
async fn run_sweeps_at_once_and_again_and_stops_when_it_is_told() {
    let db = database().await;
    expired(&db, 25).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let sweeper = Sweeper::new(db.clone()).batch(10).interval(Duration::from_millis(20));
    let running = tokio::spawn(async move { sweeper.run(async { drop(stopped.await) }).await });
    let is_empty = async || {
        let left = keys(&db).await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    };
    eventually(std::panic::Location::caller(), is_empty).await;
    expired(&db, 5).await;
    eventually(std::panic::Location::caller(), is_empty).await;
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), running).await.expect("it goes on").unwrap();
    expired(&db, 1).await;
    assert_eq!(keys(&db).await.len(), 1);
    no_transaction_is_left(&db).await;
}

#[tokio::test]
async fn a_stop_between_two_batches_finishes_the_one_under_way() {
    let db = database().await;
    expired(&db, 25).await;
    Sweeper::new(db.clone()).batch(10).run(std::future::ready(())).await;
    assert_eq!(keys(&db).await.len(), 15);
}

#[tokio::test]
async fn a_failed_sweep_is_returned_or_logged_and_tried_again() {
    let logs = Logs::capture();
    let db = database().await;
    expired(&db, 3).await;
    let rename = async |from: &str, to: &str| {
        let sql = format!("alter table idempotency.{from} rename to {to}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&*db).await.unwrap();
    };
    rename("record", "elsewhere").await;
    let sweeper = Sweeper::new(db.clone()).interval(Duration::from_millis(20));
    let error = sweeper.sweep_once().await.unwrap_err();
    assert!(error.to_string().contains("sweeping expired records"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("idempotency.record"), "{source}");
    assert!(sweeper.run_once().await.is_err());

    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move { sweeper.run(async { drop(stopped.await) }).await });
    eventually(std::panic::Location::caller(), async || {
        let lines = logs.lines_with("a sweep failed");
        if lines.len() > 1 { Ok(()) } else { Err(logs.text()) }
    })
    .await;
    rename("elsewhere", "record").await;
    eventually(std::panic::Location::caller(), async || {
        let left = keys(&db).await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap();
}
