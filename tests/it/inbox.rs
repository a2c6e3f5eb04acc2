//! A message has one effect, however often it comes.

use std::time::Duration;

use tokio::sync::oneshot;
use tower_idempotency::Inbox;
use tower_idempotency::inbox::{Advanced, Received};

use crate::support::{database, effect, effects};

#[tokio::test]
async fn the_second_of_two_deliveries_is_a_duplicate_and_another_subscriber_has_its_own() {
    let db = database().await;
    let mut connection = db.acquire().await.unwrap();
    let billing = Inbox::new("billing");
    assert_eq!(billing.receive(&mut connection, "m").await.unwrap(), Received::First);
    assert_eq!(billing.receive(&mut connection, "m").await.unwrap(), Received::Duplicate);
    assert_eq!(billing.receive(&mut connection, "M").await.unwrap(), Received::First);
    assert_eq!(Inbox::new("stock").receive(&mut connection, "m").await.unwrap(), Received::First);
}

#[tokio::test]
async fn a_rolled_back_message_was_never_received() {
    let db = database().await;
    let inbox = Inbox::new("billing");
    let mut tx = db.begin().await.unwrap();
    assert!(inbox.receive(&mut tx, "m").await.unwrap().is_first());
    assert_eq!(inbox.receive(&mut tx, "m").await.unwrap(), Received::Duplicate);
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert!(inbox.receive(&mut tx, "m").await.unwrap().is_first());
}

/// Receives in a transaction that is held open while another one asks; `commits` says how it ends.
async fn beside_an_open_one(commits: bool, batch: bool) -> Received {
    let db = database().await;
    let inbox = Inbox::new("billing");
    let mut first = db.begin().await.unwrap();
    assert!(inbox.receive(&mut first, "m").await.unwrap().is_first());
    let mut second = db.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *second).await.unwrap();
    let waiting = tokio::spawn(async move {
        if batch {
            inbox.receive_batch(&mut second, ["a", "m"]).await.unwrap()[1]
        } else {
            inbox.receive(&mut second, "m").await.unwrap()
        }
    });
    crate::support::eventually(std::panic::Location::caller(), async || {
        let blocked: bool = sqlx::query_scalar("select cardinality(pg_blocking_pids($1)) > 0")
            .bind(pid)
            .fetch_one(&*db)
            .await
            .unwrap();
        if blocked { Ok(()) } else { Err("it does not wait".into()) }
    })
    .await;
    assert!(!waiting.is_finished());
    if commits {
        first.commit().await.unwrap();
    } else {
        first.rollback().await.unwrap();
    }
    waiting.await.unwrap()
}

#[tokio::test]
async fn a_copy_waits_and_is_a_duplicate_of_what_was_committed() {
    assert_eq!(beside_an_open_one(true, false).await, Received::Duplicate);
    assert_eq!(beside_an_open_one(true, true).await, Received::Duplicate);
}

#[tokio::test]
async fn a_copy_waits_and_is_the_first_if_the_other_was_rolled_back() {
    assert_eq!(beside_an_open_one(false, false).await, Received::First);
    assert_eq!(beside_an_open_one(false, true).await, Received::First);
}

#[tokio::test]
async fn a_batch_names_exactly_which_are_duplicates() {
    use Received::{Duplicate, First};
    let db = database().await;
    let inbox = Inbox::new("billing");
    let mut tx = db.begin().await.unwrap();
    inbox.receive_batch(&mut tx, ["c", "a"]).await.unwrap();
    let received = inbox.receive_batch(&mut tx, ["d", "a", "b", "d", "c", "a", "e"]).await.unwrap();
    assert_eq!(received, [First, Duplicate, First, Duplicate, Duplicate, Duplicate, First]);
    assert_eq!(inbox.receive_batch(&mut tx, Vec::<String>::new()).await.unwrap(), []);
    let many: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    assert!(inbox.receive_batch(&mut tx, &many).await.unwrap().iter().all(|r| r.is_first()));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_the_same_messages_in_any_order_do_not_lock_each_other_out() {
    let db = database().await;
    let inbox = Inbox::new("billing");
    for round in 0..20 {
        let ids: Vec<String> = (0..40).map(|n| format!("{round}-{n}")).collect();
        // Half of them were had so long ago that they are new again.
        let mut connection = db.acquire().await.unwrap();
        inbox.receive_batch(&mut connection, &ids[..20]).await.unwrap();
        sqlx::query("update idempotency.inbox set expires_at = now() - interval '1 s'")
            .execute(&mut *connection)
            .await
            .unwrap();
        drop(connection);
        let batches: Vec<_> = (0..4)
            .map(|turn| {
                let (db, inbox, mut ids) = ((*db).clone(), inbox.clone(), ids.clone());
                ids.rotate_left(turn * 10);
                if turn % 2 == 1 {
                    ids.reverse();
                }
                tokio::spawn(async move {
                    let mut tx = db.begin().await.unwrap();
                    let received = inbox.receive_batch(&mut tx, &ids).await.unwrap();
                    tx.commit().await.unwrap();
                    received.iter().filter(|received| received.is_first()).count()
                })
            })
            .collect();
        let mut first = 0;
        for batch in batches {
            first += batch.await.unwrap();
        }
        assert_eq!(first, 40);
    }
}

#[tokio::test]
async fn a_broken_id_is_an_error_and_leaves_the_transaction_as_it_was() {
    let db = database().await;
    let inbox = Inbox::new("billing");
    let mut tx = db.begin().await.unwrap();
    effect(&mut tx, "kept").await.unwrap();
    for id in ["", "\0", &"x".repeat(1_025)] {
        assert!(inbox.receive(&mut tx, id).await.is_err());
        assert!(inbox.receive_batch(&mut tx, ["good", id]).await.is_err());
        assert!(inbox.advance(&mut tx, id, 1).await.is_err());
    }
    assert!(inbox.receive(&mut tx, "good").await.unwrap().is_first());
    tx.commit().await.unwrap();
    assert_eq!(effects(&db, "kept").await, 1);
}

#[tokio::test]
async fn a_message_whose_retention_is_over_is_new_again_swept_or_not() {
    let db = database().await;
    let inbox = Inbox::new("billing").retention(Duration::from_secs(3_600));
    let mut connection = db.acquire().await.unwrap();
    inbox.receive_batch(&mut connection, ["a", "b", "c"]).await.unwrap();
    sqlx::query("update idempotency.inbox set expires_at = now() - interval '1 s' where message_id <> 'c'")
        .execute(&mut *connection)
        .await
        .unwrap();
    assert_eq!(inbox.receive(&mut connection, "a").await.unwrap(), Received::First);
    assert_eq!(inbox.receive(&mut connection, "a").await.unwrap(), Received::Duplicate);
    let received = inbox.receive_batch(&mut connection, ["a", "b", "c"]).await.unwrap();
    assert_eq!(received, [Received::Duplicate, Received::First, Received::Duplicate]);
}

#[tokio::test]
async fn the_sweeper_deletes_messages_whose_retention_is_over_and_no_other() {
    let db = database().await;
    let mut connection = db.acquire().await.unwrap();
    let ids: Vec<String> = (0..25).map(|n| n.to_string()).collect();
    Inbox::new("billing").receive_batch(&mut connection, &ids).await.unwrap();
    sqlx::query("update idempotency.inbox set expires_at = now() - interval '1 s' where message_id <> '7'")
        .execute(&mut *connection)
        .await
        .unwrap();
    let swept = tower_idempotency::Sweeper::new((*db).clone()).batch(10).run_once().await.unwrap();
    assert_eq!((swept.deleted, swept.messages), (0, 24));
    let left: Vec<String> = sqlx::query_scalar("select message_id from idempotency.inbox")
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    assert_eq!(left, ["7"]);
}

#[tokio::test]
async fn a_late_message_is_stale_and_a_rolled_back_advance_is_none() {
    use Advanced::{Newer, Stale};
    let db = database().await;
    let inbox = Inbox::new("stock");
    let mut tx = db.begin().await.unwrap();
    assert_eq!(inbox.advance(&mut tx, "s", 3).await.unwrap(), Newer);
    assert_eq!(inbox.advance(&mut tx, "s", 2).await.unwrap(), Stale);
    assert_eq!(inbox.advance(&mut tx, "s", 3).await.unwrap(), Stale);
    assert_eq!(inbox.advance(&mut tx, "t", 1).await.unwrap(), Newer);
    assert_eq!(Inbox::new("billing").advance(&mut tx, "s", 1).await.unwrap(), Newer);
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(inbox.advance(&mut tx, "s", 9).await.unwrap(), Newer);
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(inbox.advance(&mut tx, "s", 4).await.unwrap(), Newer);
    assert_eq!(inbox.advance(&mut tx, "s", i64::MIN).await.unwrap(), Stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_messages_at_once_the_newer_one_stays() {
    let db = database().await;
    let inbox = Inbox::new("stock");
    let mut newer = db.begin().await.unwrap();
    assert!(inbox.advance(&mut newer, "s", 2).await.unwrap().is_newer());
    let (asked, asks) = oneshot::channel::<()>();
    let older = {
        let (db, inbox) = ((*db).clone(), inbox.clone());
        tokio::spawn(async move {
            let mut tx = db.begin().await.unwrap();
            drop(asked);
            let advanced = inbox.advance(&mut tx, "s", 1).await.unwrap();
            tx.commit().await.unwrap();
            advanced
        })
    };
    drop(asks.await);
    newer.commit().await.unwrap();
    assert_eq!(older.await.unwrap(), Advanced::Stale);
}
