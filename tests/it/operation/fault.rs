//! A run that does not come to its end: nothing is kept, and the key is free.

use futures_util::FutureExt as _;
use sqlx::Connection as _;
use tokio::sync::oneshot;
use tower_idempotency::{Ran, RejectionKind, Tx};

use super::{Failed, Payout, pay, payouts};
use crate::support::{
    Fate, OnDrop, Proxy, Turnstile, database, effect, effects, eventually, is_sound, poll_once, records,
    states,
};

/// A fresh run after one that failed: it executes, and then replays.
async fn the_key_is_free(db: &devpg::TestDb) {
    let ran = payouts(db).run("k", &1250, pay).await.unwrap();
    assert!(ran.is_executed());
    let again = payouts(db).run("k", &1250, pay).await.unwrap();
    assert_eq!((again.is_executed(), again.value()), (false, ran.value()));
    assert_eq!((effects(db, "paid").await, states(db).await), (1, vec!["completed".to_owned()]));
    is_sound(db, db).await;
}

#[tokio::test]
async fn an_error_undoes_the_effects_and_the_next_run_executes() {
    let db = database().await;
    let declined = async |mut tx: Tx| {
        effect(&mut tx, "paid").await?;
        Err::<Payout, _>(Failed::Declined)
    };
    let error = payouts(&db).run("k", &1250, declined).await.unwrap_err();
    assert!(matches!(error, Failed::Declined), "{error:?}");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    the_key_is_free(&db).await;
}

#[tokio::test]
async fn a_panic_undoes_the_effects_and_the_next_run_executes() {
    let db = database().await;
    let panics = async |mut tx: Tx| -> Result<Payout, Failed> {
        effect(&mut tx, "paid").await?;
        panic!("after the effect");
    };
    let operation = payouts(&db);
    let run = std::panic::AssertUnwindSafe(operation.run("k", &1250, panics));
    run.catch_unwind().await.unwrap_err();
    is_sound(&db, &db).await;
    the_key_is_free(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_run_in_its_closure_undoes_the_effects_and_frees_the_key() {
    let db = database().await;
    let gate = Turnstile::default();
    let (operation, at) = (payouts(&db), gate.clone());
    let (guard, dropped) = OnDrop::new();
    let run = tokio::spawn(async move {
        let _guard = guard;
        let hangs = async |mut tx: Tx| {
            effect(&mut tx, "paid").await?;
            at.pass().await;
            pay(tx).await
        };
        operation.run("k", &1250, hangs).await
    });
    gate.arrival().await;
    run.abort();
    dropped.await.unwrap();
    is_sound(&db, &db).await;
    the_key_is_free(&db).await;
}

#[tokio::test]
async fn dropping_a_run_while_it_claims_leaves_nothing() {
    let db = database().await;
    for _ in 0..5 {
        poll_once(payouts(&db).run("k", &1250, pay)).await;
    }
    eventually(std::panic::Location::caller(), async || match payouts(&db).run("k", &1250, pay).await {
        Ok(ran) if ran.is_executed() => Ok(()),
        Ok(ran) => panic!("executed by a run that was dropped: {ran:?}"),
        Err(Failed::Ours(error)) if error.is_in_flight() => Err(error.to_string()),
        Err(error) => panic!("{error:?}"),
    })
    .await;
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_tx_that_the_closure_keeps_is_an_error_and_nothing_is_committed() {
    let db = database().await;
    let (keep, mut kept) = oneshot::channel();
    let keeps = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await?;
        keep.send(tx).unwrap();
        Ok::<_, Failed>(Payout { id, note: None })
    };
    let error = payouts(&db).run("k", &1250, keeps).await.unwrap_err().ours();
    assert_eq!(error.rejection(), Some(RejectionKind::TransactionKept));
    let in_flight = payouts(&db).run("k", &1250, pay).await.unwrap_err().ours();
    assert!(in_flight.is_in_flight(), "{in_flight}");
    drop(kept.try_recv().unwrap());
    is_sound(&db, &db).await;
    the_key_is_free(&db).await;
}

#[tokio::test]
async fn a_swallowed_error_and_an_open_savepoint_are_errors_and_nothing_is_committed() {
    let db = database().await;
    let swallows = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await?;
        let _ = effect(&mut tx, &"too long".repeat(20)).await;
        Ok::<_, Failed>(Payout { id, note: None })
    };
    let error = payouts(&db).run("k", &1250, swallows).await.unwrap_err().ours();
    assert_eq!(error.rejection(), Some(RejectionKind::TransactionAborted));
    let forgets = async |mut tx: Tx| {
        let mut nested = tx.begin().await?;
        let id = effect(&mut nested, "paid").await?;
        std::mem::forget(nested);
        Ok::<_, Failed>(Payout { id, note: None })
    };
    let error = payouts(&db).run("k", &1250, forgets).await.unwrap_err().ours();
    assert_eq!(error.rejection(), Some(RejectionKind::TransactionAborted));
    is_sound(&db, &db).await;
    the_key_is_free(&db).await;
}

#[tokio::test]
async fn a_commit_that_goes_unanswered_is_settled_from_the_record() {
    let db = database().await;
    let cut = std::sync::atomic::AtomicBool::new(false);
    let proxy = Proxy::to(&db, move |message| {
        let first = message.is_query("COMMIT") && !cut.swap(true, std::sync::atomic::Ordering::SeqCst);
        if first { Fate::Unanswered } else { Fate::Forward }
    });
    let pool = proxy.pool(2).await;
    let ran = payouts(&pool).run("k", &1250, pay).await.unwrap();
    assert!(ran.is_executed());
    assert_eq!(payouts(&pool).run("k", &1250, pay).await.unwrap(), Ran::Replayed(ran.into_value()));
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &pool).await;
}
