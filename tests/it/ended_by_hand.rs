//! A handler that ends the transaction itself: never a success without its record.

use axum::http::StatusCode;
use devpg::TestDb;
use tower_idempotency::{IdempotencyLayer, Settlement, Tx};

use crate::support::{Runs, Service, database, effect, effects, is_sound, layer, serve_behind, states};

/// The first run has an effect, sends a statement, and answers; later ones are well-behaved.
async fn sending(
    layer: IdempotencyLayer,
    statement: &'static str,
    answer: (StatusCode, Settlement),
) -> (Service, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        if counted.next() == 1 {
            sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap();
            return (answer.0, answer.1, "first");
        }
        (StatusCode::CREATED, Settlement::Complete, "again")
    };
    (serve_behind(layer, handler).await, runs)
}

const COMMITS: [&str; 5] = [
    "commit",
    "commit and chain",
    "commit; begin",
    "commit; insert into effect (name) values ('alone')",
    "commit; begin; insert into effect (name) values ('undone')",
];

async fn a_retry_is_refused(db: &TestDb, service: &Service, runs: &Runs) {
    for _ in 0..2 {
        service.post("/").key("k").send().await.is_rejected(500, "record-unreadable");
    }
    assert_eq!((runs.count(), effects(db, "paid").await), (1, 1));
    assert_eq!(effects(db, "undone").await, 0);
    assert_eq!(states(db).await, ["pending"]);
    is_sound(db, db).await;
}

#[tokio::test]
async fn a_commit_by_hand_is_a_500_and_the_retry_is_refused() {
    for statement in COMMITS {
        let db = database().await;
        let (service, runs) = sending(layer(&db), statement, (StatusCode::OK, Settlement::Complete)).await;
        let first = service.post("/").key("k").send().await;
        first.is_rejected(500, "transaction-ended");
        assert_eq!(first.json()["retry"], "never");
        a_retry_is_refused(&db, &service, &runs).await;
    }
}

#[tokio::test]
async fn a_commit_by_hand_before_a_refusal_is_not_recorded_as_one() {
    for statement in COMMITS {
        let db = database().await;
        let (service, runs) = sending(layer(&db), statement, (StatusCode::NOT_FOUND, Settlement::Fail)).await;
        // Its effects stand: to say 404 again and again would deny them.
        service.post("/").key("k").send().await.is_rejected(500, "record-unreadable");
        a_retry_is_refused(&db, &service, &runs).await;
    }
}

#[tokio::test]
async fn a_commit_by_hand_before_a_fault_is_not_doubled_by_the_retry() {
    for settlement in [Settlement::Release, Settlement::Rerun] {
        for statement in COMMITS {
            let db = database().await;
            let answer = (StatusCode::INTERNAL_SERVER_ERROR, settlement);
            let (service, runs) = sending(layer(&db), statement, answer).await;
            assert_eq!(service.post("/").key("k").send().await.status, 500);
            a_retry_is_refused(&db, &service, &runs).await;
        }
    }
}

#[tokio::test]
async fn a_rollback_by_hand_is_a_500_and_nothing_is_kept() {
    for statement in
        ["rollback", "rollback and chain", "rollback; begin; insert into effect (name) values ('undone')"]
    {
        let db = database().await;
        let (service, runs) = sending(layer(&db), statement, (StatusCode::OK, Settlement::Complete)).await;
        service.post("/").key("k").send().await.is_rejected(500, "transaction-ended");
        assert_eq!(states(&db).await.len(), 0);
        assert_eq!((effects(&db, "paid").await, effects(&db, "undone").await), (0, 0));
        is_sound(&db, &db).await;
        let retry = service.post("/").key("k").send().await;
        assert_eq!((retry.status.as_u16(), retry.is_replay(), runs.count()), (201, false, 2));
        assert_eq!(effects(&db, "paid").await, 1);
        is_sound(&db, &db).await;
    }
}

/// It cannot be prevented, so the answer says `never`: a retry would double what stands.
#[tokio::test]
async fn a_write_after_a_rollback_by_hand_stands_and_the_answer_advises_against_a_retry() {
    let db = database().await;
    let statement = "rollback; insert into effect (name) values ('alone')";
    let (service, _) = sending(layer(&db), statement, (StatusCode::OK, Settlement::Complete)).await;
    let first = service.post("/").key("k").send().await;
    first.is_rejected(500, "transaction-ended");
    assert_eq!(first.json()["retry"], "never");
    assert_eq!((effects(&db, "paid").await, effects(&db, "alone").await), (0, 1));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn a_rollback_by_hand_before_a_refusal_leaves_the_refusal() {
    let db = database().await;
    let (service, runs) = sending(layer(&db), "rollback", (StatusCode::NOT_FOUND, Settlement::Fail)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 404);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!((runs.count(), effects(&db, "paid").await), (1, 0));
    is_sound(&db, &db).await;
}
