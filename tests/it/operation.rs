//! The same claim without HTTP.

mod fault;

use std::error::Error as StdError;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tower_idempotency::{Error, Operation, Ran, RejectionKind, Tx};

use crate::support::{Turnstile, database, effect, effects, is_sound, layer, operation_of, records, serve};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Payout {
    id: i64,
    note: Option<String>,
}

#[derive(Serialize)]
struct Forward {
    from: i64,
    to: i64,
}

#[derive(Serialize)]
struct Backward {
    to: i64,
    from: i64,
}

#[derive(Debug)]
enum Failed {
    Ours(Error),
    Declined,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        panic!("{error}")
    }
}

impl Failed {
    #[track_caller]
    fn ours(self) -> Error {
        match self {
            Self::Ours(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

fn payouts(pool: &PgPool) -> Operation {
    operation_of(pool, "payouts.create").tenant("acme")
}

async fn pay(mut tx: Tx) -> Result<Payout, Failed> {
    let id = effect(&mut tx, "paid").await?;
    Ok(Payout { id, note: None })
}

#[tokio::test]
async fn a_second_run_gets_the_first_ones_result() {
    let db = database().await;
    let Ran::Executed(first) = payouts(&db).run("k", &("acme", 1250), pay).await.unwrap() else {
        panic!("replayed");
    };
    let second = payouts(&db).run("k", &("acme", 1250), pay).await.unwrap();
    assert_eq!(second, Ran::Replayed(first));
    // By another process, with another order of members.
    let payouts = operation_of(&db.pool(1).await, "payouts.list").tenant("acme");
    let first = payouts.run("k", &Forward { from: 1, to: 2 }, pay).await.unwrap();
    let second = payouts.run("k", &Backward { to: 2, from: 1 }, pay).await.unwrap();
    assert_eq!(second, Ran::Replayed(first.into_value()));
    assert_eq!(effects(&db, "paid").await, 2);
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn another_input_is_refused_and_the_first_result_stays() {
    let db = database().await;
    let first = payouts(&db).run("k", &1250, pay).await.unwrap();
    let error = payouts(&db).run("k", &1251, pay).await.unwrap_err().ours();
    assert!(error.is_key_reused(), "{error}");
    assert_eq!(payouts(&db).run("k", &1250, pay).await.unwrap().value(), first.value());
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn another_tenant_and_another_operation_have_keys_of_their_own() {
    let db = database().await;
    for operation in [
        payouts(&db),
        payouts(&db).tenant("other"),
        payouts(&db).tenant(7_i64),
        operation_of(&db, "payouts.cancel").tenant("acme"),
        operation_of(&db, "payouts.create"),
    ] {
        assert!(operation.run("k", &1250, pay).await.unwrap().is_executed(), "{operation:?}");
    }
    assert_eq!((effects(&db, "paid").await, records(&db).await), (5, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_at_once_one_is_told_that_the_key_is_in_flight() {
    let db = database().await;
    let gate = Turnstile::default();
    let (operation, at) = (payouts(&db), gate.clone());
    // Also: a run is `Send`, and can be spawned.
    let first = tokio::spawn(async move {
        let slow = async |tx| {
            at.pass().await;
            pay(tx).await
        };
        operation.run("k", &1250, slow).await
    });
    gate.arrival().await;
    let error = payouts(&db).run("k", &1250, pay).await.unwrap_err().ours();
    assert!(error.is_in_flight(), "{error}");
    assert_eq!(error.rejection(), Some(RejectionKind::InFlight));
    gate.open();
    let first = first.await.unwrap().unwrap();
    assert!(first.is_executed());
    assert_eq!(payouts(&db).run("k", &1250, pay).await.unwrap(), Ran::Replayed(first.into_value()));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_result_of_another_type_is_a_clear_error() {
    let db = database().await;
    payouts(&db).run("k", &1250, pay).await.unwrap();
    let error = payouts(&db)
        .run("k", &1250, async |_: Tx| Ok::<Vec<u8>, Failed>(Vec::new()))
        .await
        .unwrap_err()
        .ours();
    assert_eq!(error.to_string(), "the recorded result does not have the type that is asked for");
    assert!(error.source().unwrap().is::<serde_json::Error>());
    assert_eq!(error.rejection(), None);
}

#[tokio::test]
async fn a_tenant_or_key_that_says_nothing_is_an_error_before_anything_is_done() {
    let db = database().await;
    for tenant in ["", &"t".repeat(256)] {
        let operation = payouts(&db).tenant(tenant);
        operation.run("k", &1, pay).await.unwrap_err().ours();
    }
    payouts(&db).tenant(None::<String>).run("k", &1, pay).await.unwrap_err().ours();
    for key in ["", " ", "a b", "ä", &"k".repeat(256)] {
        payouts(&db).run(key, &1, pay).await.unwrap_err().ours();
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
}

#[tokio::test]
async fn a_result_expires_and_leaves_a_tombstone_if_asked_for() {
    let db = database().await;
    let operation = payouts(&db).retention(Duration::from_secs(60)).tombstone(Duration::from_secs(60));
    operation.run("k", &1250, pay).await.unwrap();
    age(&db, 61).await;
    let error = operation.run("k", &1250, pay).await.unwrap_err().ours();
    assert!(error.is_gone(), "{error}");
    age(&db, 60).await;
    assert!(operation.run("k", &1250, pay).await.unwrap().is_executed());
    assert_eq!(effects(&db, "paid").await, 2);
}

async fn age(db: &PgPool, seconds: i32) {
    sqlx::query("update idempotency.record set expires_at = expires_at - make_interval(secs => $1)")
        .bind(f64::from(seconds))
        .execute(db)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_waits_for_the_commit_runs_after_it() {
    let db = database().await;
    let (tell, told) = oneshot::channel();
    let pool = PgPool::clone(&db);
    let hooked = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await?;
        tx.after_commit(async move { tell.send(effects(&pool, "paid").await).unwrap() });
        Ok::<_, Failed>(id)
    };
    payouts(&db).run("k", &1250, hooked).await.unwrap();
    assert_eq!(told.await, Ok(1));
}

/// The tables are the same; the fingerprints never are.
#[tokio::test]
async fn a_key_of_a_request_and_a_key_of_a_run_are_never_the_same_request() {
    let db = database().await;
    let route = axum::routing::post(async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string());
    let layer = layer(&db).operation("payouts.create");
    let service = serve(axum::Router::new().route("/", route.route_layer(layer))).await;
    assert_eq!(service.post("/").header("x-tenant", "acme").key("k").json("1250").send().await.status, 200);
    let error = payouts(&db).run("k", &1250, pay).await.unwrap_err().ours();
    assert!(error.is_key_reused(), "{error}");
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_to_be_stored_is_an_error_and_its_effects_are_undone() {
    let db = database().await;
    let reports = operation_of(&db, "reports.render");
    let run = reports.run("k", "input", async |mut tx: Tx| {
        effect(&mut tx, "rendered").await.unwrap();
        Ok::<_, Error>("x".repeat(64 << 20))
    });
    let error = run.await.unwrap_err();
    assert_eq!(error.rejection(), Some(RejectionKind::ResponseUnstorable), "{error}");
    assert!(!error.is_unavailable());
    assert_eq!((effects(&db, "rendered").await, records(&db).await), (0, 0));
}
