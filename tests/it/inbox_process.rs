//! What a consumer is told, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Notify, oneshot};
use tower_idempotency::inbox::Processed;
use tower_idempotency::outbox::{self, MemoryPublisher};
use tower_idempotency::{Error, Inbox};

use crate::support::outbox::{drain, event, relay};
use crate::support::{Fate, Message, Proxy, database, effect, effects, no_transaction_is_left, through};

type Anyhow = Box<dyn std::error::Error + Send + Sync>;

async fn bill(pool: &PgPool, runs: &AtomicUsize) -> Result<Processed<i64>, Anyhow> {
    let inbox = Inbox::new("billing");
    let inbox = if through::unnamed(pool) { inbox.unnamed_statements() } else { inbox };
    inbox
        .process(pool, "m", async |mut tx| {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(effect(&mut tx, "billed").await?)
        })
        .await
}

async fn messages(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from idempotency.inbox").fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_message_is_worked_on_once() {
    let (db, runs) = (database().await, AtomicUsize::new(0));
    assert!(matches!(bill(&db, &runs).await.unwrap(), Processed::First(_)));
    assert_eq!(bill(&db, &runs).await.unwrap(), Processed::Duplicate);
    assert_eq!((runs.load(Ordering::SeqCst), effects(&db, "billed").await), (1, 1));
    no_transaction_is_left(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_copies_at_once_one_is_the_first() {
    let (db, runs) = (database().await, Arc::new(AtomicUsize::new(0)));
    let copies: Vec<_> = (0..8)
        .map(|_| {
            let (db, runs) = ((*db).clone(), Arc::clone(&runs));
            tokio::spawn(async move { bill(&db, &runs).await.unwrap() })
        })
        .collect();
    let mut first = 0;
    for copy in copies {
        first += usize::from(matches!(copy.await.unwrap(), Processed::First(_)));
    }
    assert_eq!((first, runs.load(Ordering::SeqCst), effects(&db, "billed").await), (1, 1, 1));
}

#[tokio::test]
async fn a_failure_leaves_no_trace_and_the_redelivery_runs() {
    let db = database().await;
    let failed: Result<Processed<()>, Anyhow> = Inbox::new("billing")
        .process(&db, "m", async |mut tx| {
            effect(&mut tx, "billed").await?;
            Err("no".into())
        })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (0, 0));
    assert!(matches!(bill(&db, &AtomicUsize::new(0)).await.unwrap(), Processed::First(_)));
}

#[tokio::test]
async fn a_panic_leaves_no_trace() {
    let db = database().await;
    let pool = (*db).clone();
    let panicked = tokio::spawn(async move {
        let inbox = Inbox::new("billing");
        let work = inbox.process(&pool, "m", async |mut tx| {
            effect(&mut tx, "billed").await.unwrap();
            panic!("as it happens");
            #[expect(unreachable_code, reason = "it names the types")]
            Ok::<(), Error>(())
        });
        drop(work.await);
    });
    assert!(panicked.await.unwrap_err().is_panic());
    no_transaction_is_left(&db).await;
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (0, 0));
}

#[tokio::test]
async fn work_that_is_dropped_is_undone_and_work_that_has_returned_is_committed() {
    let db = database().await;
    let (arrived, never) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (pool, there) = ((*db).clone(), Arc::clone(&arrived));
    let dropped = tokio::spawn(async move {
        let inbox = Inbox::new("billing");
        let work = inbox.process(&pool, "m", async |mut tx| {
            effect(&mut tx, "billed").await.unwrap();
            there.notify_one();
            never.notified().await;
            Ok::<_, Error>(())
        });
        drop(work.await);
    });
    arrived.notified().await;
    dropped.abort();
    drop(dropped.await);
    no_transaction_is_left(&db).await;
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (0, 0));

    let mut dropped = 0;
    for n in 1..=20 {
        let (returned, returns) = oneshot::channel::<()>();
        let (inbox, id) = (Inbox::new("billing"), format!("m-{n}"));
        let work = inbox.process(&db, &id, async |mut tx| {
            effect(&mut tx, "billed").await.unwrap();
            drop(tx);
            drop(returned);
            Ok::<_, Error>(())
        });
        // Dropped while it waits for the database's answer to what comes after the work, if that
        // is not there already.
        tokio::select! {
            biased;
            _ = returns => dropped += 1,
            done = work => drop(done.unwrap()),
        }
        no_transaction_is_left(&db).await;
        assert_eq!((messages(&db).await, effects(&db, "billed").await), (n, n));
    }
    assert!(dropped > 0);
}

#[tokio::test]
async fn an_empty_id_is_an_error_before_any_work() {
    let db = database().await;
    let refused = Inbox::new("billing").process(&db, "", async |_tx| Ok::<_, Error>(())).await;
    assert!(refused.unwrap_err().to_string().contains("1 to 1024 bytes"));
}

#[tokio::test]
async fn a_copy_that_waits_too_long_is_in_flight() {
    let db = database().await;
    let inbox = Inbox::new("billing").wait(Duration::from_millis(50));
    let mut open = db.begin().await.unwrap();
    inbox.receive(&mut open, "m").await.unwrap();
    let refused = inbox.process(&db, "m", async |_tx| Ok::<_, Error>(())).await.unwrap_err();
    assert!(refused.is_in_flight(), "{refused:?}");
    open.commit().await.unwrap();
    let known = inbox.process(&db, "m", async |_tx| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(known, Processed::Duplicate);
}

/// Work that breaks its promise, with what it has left behind.
async fn broken(statement: &'static str) -> (Error, i64, i64) {
    let db = database().await;
    let inbox = Inbox::new("billing");
    let broken = inbox.process(&db, "m", async |mut tx| {
        effect(&mut tx, "billed").await.unwrap();
        drop(sqlx::raw_sql(statement).execute(&mut *tx).await);
        Ok::<_, Error>(())
    });
    let error = broken.await.unwrap_err();
    no_transaction_is_left(&db).await;
    (error, messages(&db).await, effects(&db, "billed").await)
}

#[tokio::test]
async fn work_in_an_aborted_transaction_is_never_said_to_be_done() {
    let (error, messages, effects) = broken("select 1 / 0").await;
    assert_eq!(error.rejection().unwrap().code(), "transaction-aborted");
    assert_eq!((messages, effects), (0, 0));
}

#[tokio::test]
async fn work_that_ends_its_transaction_itself_is_never_said_to_be_done() {
    let (error, messages, effects) = broken("rollback").await;
    assert_eq!(error.rejection().unwrap().code(), "transaction-ended");
    assert_eq!((messages, effects), (0, 0));
    let (error, ..) = broken("commit; begin").await;
    assert_eq!(error.rejection().unwrap().code(), "transaction-ended");
}

#[tokio::test]
async fn a_commit_that_is_refused_is_an_error_and_leaves_no_trace() {
    let (error, messages, effects) = broken("insert into child (parent) values (1)").await;
    assert_eq!(error.rejection().unwrap().code(), "commit-refused");
    assert_eq!((messages, effects), (0, 0));
}

#[tokio::test]
async fn a_kept_tx_is_an_error_and_leaves_no_trace() {
    let db = database().await;
    let (keep, kept) = oneshot::channel();
    let inbox = Inbox::new("billing");
    let broken = inbox.process(&db, "m", async |mut tx| {
        effect(&mut tx, "billed").await.unwrap();
        drop(keep.send(tx));
        Ok::<_, Error>(())
    });
    assert_eq!(broken.await.unwrap_err().rejection().unwrap().code(), "transaction-kept");
    drop(kept.await);
    no_transaction_is_left(&db).await;
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (0, 0));
}

/// What becomes of the first COMMIT; all other messages pass.
fn first_commit(fate: Fate) -> impl Fn(&Message) -> Fate + Send + Sync {
    let fate = std::sync::Mutex::new(Some(fate));
    move |message| {
        if message.is_query("COMMIT") {
            fate.lock().unwrap().take().unwrap_or(Fate::Forward)
        } else {
            Fate::Forward
        }
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_to_be_ours() {
    let (db, runs) = (database().await, AtomicUsize::new(0));
    let proxy = Proxy::to(&db, first_commit(Fate::Unanswered));
    let pool = proxy.pool(1).await;
    assert!(matches!(bill(&pool, &runs).await.unwrap(), Processed::First(_)));
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (1, 1));
    assert_eq!(bill(&pool, &runs).await.unwrap(), Processed::Duplicate);
}

#[tokio::test]
async fn a_commit_that_never_arrives_is_an_error_and_the_redelivery_runs() {
    let (db, runs) = (database().await, AtomicUsize::new(0));
    let proxy = Proxy::to(&db, first_commit(Fate::Lost));
    let pool = proxy.pool(1).await;
    let error = bill(&pool, &runs).await.unwrap_err();
    assert!(error.downcast_ref::<Error>().unwrap().is_unavailable(), "{error:?}");
    assert_eq!((messages(&db).await, effects(&db, "billed").await), (0, 0));
    assert!(matches!(bill(&pool, &runs).await.unwrap(), Processed::First(_)));
}

#[tokio::test]
async fn a_commit_that_stays_open_is_unknown_and_the_redelivery_finds_out() {
    let (db, runs) = (database().await, AtomicUsize::new(0));
    let (tell, told) = oneshot::channel();
    let proxy = Proxy::to(&db, first_commit(Fate::Late(told)));
    let pool = proxy.pool(2).await;
    assert_eq!(bill(&pool, &runs).await.unwrap(), Processed::Unknown);
    tell.send(()).unwrap();
    assert_eq!(bill(&pool, &runs).await.unwrap(), Processed::Duplicate);
    assert_eq!((runs.load(Ordering::SeqCst), effects(&db, "billed").await), (1, 1));
}

#[tokio::test]
async fn an_event_that_the_work_publishes_is_committed_with_it() {
    let db = database().await;
    let published = MemoryPublisher::default();
    for _ in 0..2 {
        let inbox = Inbox::new("billing");
        let work = inbox.process(&db, "m", async |mut tx| {
            outbox::publish(&mut tx, &event("a", 1)).await?;
            Ok::<_, Error>(())
        });
        work.await.unwrap();
    }
    drain(&relay(&db, published.clone())).await;
    assert_eq!(published.events().len(), 1);
}
