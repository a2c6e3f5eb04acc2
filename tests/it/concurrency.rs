//! However many identical requests come at once, the handler runs once.

use std::time::Duration;

use devpg::TestDb;
use tokio::task::JoinSet;
use tower_idempotency::{Idempotency, IdempotencyLayer, Tx};

use crate::support::{
    Answer, Gate, Service, database, effects, layer, no_transaction_is_left, paid, payment, records, serve,
    serve_behind, states,
};

#[tokio::test(flavor = "multi_thread")]
async fn of_two_identical_requests_at_once_one_runs_and_the_other_is_told_to_wait() {
    let db = database().await;
    one_runs_and_the_others_are_told_to_wait(&db, layer(&db), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_identical_requests_at_once_one_runs_and_the_others_are_told_to_wait() {
    let db = database().await;
    one_runs_and_the_others_are_told_to_wait(&db, layer(&db), 100).await;
}

/// The one place among those in flight is the leader's; a duplicate does not queue for it.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_pool_of_two_a_duplicate_is_told_at_once() {
    let db = database().await;
    let layer = layer(&db.pool(2).await).acquire_timeout(Duration::from_secs(3600));
    one_runs_and_the_others_are_told_to_wait(&db, layer, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_pool_of_one_a_duplicate_is_told_at_once() {
    let db = database().await;
    let layer = layer(&db.pool(1).await).acquire_timeout(Duration::from_secs(3600));
    one_runs_and_the_others_are_told_to_wait(&db, layer, 10).await;
}

/// The handler stops until all the others have their answers: they cannot have waited for it.
async fn one_runs_and_the_others_are_told_to_wait(db: &TestDb, layer: IdempotencyLayer, requests: usize) {
    let gate = Gate::shut();
    let service = serve(payment(&gate, layer)).await;
    let mut answers = all_at_once(&service, requests);
    for _ in 1..requests {
        let answer = next(&mut answers).await;
        answer.is_rejected(409, "in-flight");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(!answer.is_replay());
    }
    gate.reached(1).await;
    assert_eq!(records(db).await, 0, "the claim is visible before it is settled");
    gate.let_pass(1);
    let first = next(&mut answers).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert!(!first.is_replay());

    assert_eq!(gate.runs(), 1);
    assert_eq!(effects(db, "paid").await, 1);
    assert_eq!(states(db).await, ["completed"]);
    service.post("/").key("k").json("{}").send().await.replays(&first);
    no_transaction_is_left(db).await;
}

/// As they come, without a gate: which of them runs, and how many come too late to be told to wait,
/// is up to chance.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_has_one_effect_and_one_response() {
    let db = database().await;
    let gate = Gate::open();
    let service = serve(payment(&gate, layer(&db))).await;
    for round in 1..=20 {
        let key = format!("k{round}");
        let mut answers = JoinSet::new();
        for _ in 0..8 {
            answers.spawn(service.post("/").key(&key).json("{}").send());
        }
        let answers = answers.join_all().await;
        let first: Vec<&Answer> = answers.iter().filter(|a| a.status == 201 && !a.is_replay()).collect();
        let [first] = first[..] else { panic!("not one execution: {answers:?}") };
        for answer in answers.iter().filter(|answer| *answer != first) {
            if answer.is_replay() { answer.replays(first) } else { answer.is_rejected(409, "in-flight") }
        }
        assert_eq!(gate.runs(), round);
    }
    assert_eq!(effects(&db, "paid").await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrelated_key_is_not_delayed() {
    let db = database().await;
    let gate = Gate::shut();
    let held = gate.clone();
    let pay = move |idempotency: Idempotency, mut tx: Tx| {
        let held = held.clone();
        async move {
            if idempotency.key().as_str() == "held" {
                held.pass().await;
            }
            paid(&mut tx).await
        }
    };
    // As many places as connections, since the handler asks for none of its own.
    let layer = layer(&db.pool(2).await).max_in_flight(2);
    let service = serve_behind(layer, pay).await;
    let first = tokio::spawn(service.post("/").key("held").json("{}").send());
    gate.reached(1).await;
    for key in ["other", "Held", "held."] {
        let answer = service.post("/").key(key).json("{}").send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(!answer.is_replay());
    }
    gate.let_pass(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(effects(&db, "paid").await, 4);
}

/// Two layers stand for two processes: they share the database and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_at_another_process_is_told_to_wait() {
    let db = database().await;
    let gate = Gate::shut();
    let here = serve(payment(&gate, layer(&db.pool(2).await))).await;
    let there = serve(payment(&gate, layer(&db.pool(2).await))).await;
    let first = tokio::spawn(here.post("/").key("k").json("{}").send());
    gate.reached(1).await;

    let mut duplicates = all_at_once(&there, 20);
    while !duplicates.is_empty() {
        let answer = next(&mut duplicates).await;
        answer.is_rejected(409, "in-flight");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    gate.let_pass(1);
    let first = first.await.unwrap();
    there.post("/").key("k").json("{}").send().await.replays(&first);
    assert_eq!(gate.runs(), 1);
    assert_eq!(effects(&db, "paid").await, 1);
    no_transaction_is_left(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_between_processes_has_one_effect() {
    let db = database().await;
    let gate = Gate::open();
    let here = serve(payment(&gate, layer(&db.pool(3).await).wait(LONG))).await;
    let there = serve(payment(&gate, layer(&db.pool(3).await).wait(LONG))).await;
    for round in 1..=20 {
        let key = format!("k{round}");
        let mut answers = JoinSet::new();
        for service in [&here, &there].into_iter().cycle().take(8) {
            answers.spawn(service.post("/").key(&key).json("{}").send());
        }
        let answers = answers.join_all().await;
        let first: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_replay()).collect();
        let [first] = first[..] else { panic!("not one execution: {answers:?}") };
        assert_eq!(first.status, 201);
        answers.iter().filter(|answer| *answer != first).for_each(|answer| answer.replays(first));
        assert_eq!(gate.runs(), round);
    }
    assert_eq!(effects(&db, "paid").await, 20);
    no_transaction_is_left(&db).await;
}

fn all_at_once(service: &Service, requests: usize) -> JoinSet<Answer> {
    (0..requests).map(|_| service.post("/").key("k").json("{}").send()).collect()
}

/// A duplicate that waits for what it must not wait for is a failure, not a test that hangs.
async fn next(answers: &mut JoinSet<Answer>) -> Answer {
    let next = tokio::time::timeout(LONG, answers.join_next());
    next.await.expect("no answer while the handler is held").unwrap().unwrap()
}

const LONG: Duration = Duration::from_secs(60);
