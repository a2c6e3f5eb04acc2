//! A key that comes back with another request is refused on every path, and runs nothing.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use devpg::TestDb;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower_idempotency::{IdempotencyLayer, Sweeper, Tenant, Tx};

use crate::support::{
    Answer, Gate, Service, counted_pool, database, effect, effects, layer, layer_of, no_transaction_is_left,
    payment, serve, serve_behind, states,
};

const FIRST: &str = r#"{"amount":1250}"#;
const OTHER: &str = r#"{"amount":1251}"#;

#[tokio::test]
async fn a_settled_key_with_another_payload_is_refused_and_the_first_response_still_replays() {
    let paid = Paid::with(|layer| layer).await;
    for _ in 0..2 {
        paid.send(OTHER).await.is_rejected(422, "key-reused");
        paid.send(FIRST).await.replays(&paid.first);
    }
    assert_eq!(states(&paid.db).await, ["completed"]);
    paid.ran_once().await;
}

#[tokio::test]
async fn a_refused_request_with_another_payload_is_refused_and_the_first_refusal_still_replays() {
    let db = database().await;
    let gate = Gate::open();
    let runs = gate.clone();
    let decline = move |mut tx: Tx| {
        let runs = runs.clone();
        async move {
            runs.pass().await;
            effect(&mut tx, "declined").await.unwrap();
            (StatusCode::PAYMENT_REQUIRED, "declined")
        }
    };
    let service = serve_behind(layer(&db), decline).await;
    let first = service.post("/").key("k").json(FIRST).send().await;
    assert_eq!(first.status, 402);
    for _ in 0..2 {
        service.post("/").key("k").json(OTHER).send().await.is_rejected(422, "key-reused");
        service.post("/").key("k").json(FIRST).send().await.replays(&first);
    }
    assert_eq!(states(&db).await, ["failed"]);
    assert_eq!(gate.runs(), 1);
    assert_eq!(effects(&db, "declined").await, 0);
    no_transaction_is_left(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_waited_for_the_response_is_refused() {
    let db = database().await;
    let gate = Gate::shut();
    let (layer, mut seen) = waiting(&db);
    let service = serve(payment(&gate, layer)).await;
    let first = tokio::spawn(service.post("/").key("k").json(FIRST).send());
    gate.reached(1).await;
    let other = tokio::spawn(service.post("/").key("k").json(OTHER).send());
    seen.wait_for(|requests| *requests == 2).await.unwrap();
    refused_after_the_wait(&db, &gate, &service, first, other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_waited_for_another_process_is_refused() {
    let db = database().await;
    let gate = Gate::shut();
    let here = serve(payment(&gate, waiting(&db).0)).await;
    let (pool, attempts) = counted_pool(&db, 1).await;
    let there = serve(payment(&gate, waiting(&pool).0)).await;
    let first = tokio::spawn(here.post("/").key("k").json(FIRST).send());
    gate.reached(1).await;
    let before = attempts.count();
    let other = tokio::spawn(there.post("/").key("k").json(OTHER).send());
    attempts.reaches(before + 2).await;
    refused_after_the_wait(&db, &gate, &there, first, other).await;
}

async fn refused_after_the_wait(
    db: &TestDb,
    gate: &Gate,
    service: &Service,
    first: JoinHandle<Answer>,
    other: JoinHandle<Answer>,
) {
    gate.let_pass(1);
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    other.await.unwrap().is_rejected(422, "key-reused");
    service.post("/").key("k").json(FIRST).send().await.replays(&first);
    assert_eq!(gate.runs(), 1);
    assert_eq!(effects(db, "paid").await, 1);
    no_transaction_is_left(db).await;
}

/// A layer that waits, and says when it has asked for a tenant, which is right before the claim.
fn waiting(pool: &PgPool) -> (IdempotencyLayer, watch::Receiver<usize>) {
    let count = watch::Sender::new(0);
    let seen = count.subscribe();
    let tenant = Tenant::from_fn(move |_: &Parts| {
        count.send_modify(|count| *count += 1);
        "default"
    });
    (layer_of(pool, tenant).operation("test").wait(Duration::from_secs(60)), seen)
}

/// While it runs its request is not known to others: they are told to come back, not to give up.
#[tokio::test(flavor = "multi_thread")]
async fn another_payload_while_the_first_is_in_flight_is_told_to_wait() {
    let db = database().await;
    let gate = Gate::shut();
    let service = serve(payment(&gate, layer(&db))).await;
    let first = tokio::spawn(service.post("/").key("k").json(FIRST).send());
    gate.reached(1).await;
    service.post("/").key("k").json(OTHER).send().await.is_rejected(409, "in-flight");
    gate.let_pass(1);
    assert_eq!(first.await.unwrap().status, 201);
    service.post("/").key("k").json(OTHER).send().await.is_rejected(422, "key-reused");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn under_a_tombstone_another_payload_is_refused_before_and_after_the_sweep() {
    let paid = Paid::with(|layer| layer.tombstone(Duration::from_secs(3600))).await;
    paid.change("expires_at = now() - interval '1 second'").await;
    for state in ["completed", "tombstone"] {
        assert_eq!(states(&paid.db).await, [state]);
        paid.send(OTHER).await.is_rejected(422, "key-reused");
        paid.send(FIRST).await.is_rejected(410, "response-expired");
        Sweeper::new(paid.db.clone()).run_once().await.unwrap();
    }
    assert_eq!(states(&paid.db).await, ["tombstone"]);
    paid.ran_once().await;
}

#[tokio::test]
async fn where_the_body_was_not_kept_another_payload_is_refused() {
    let paid = Paid::with(|layer| layer.response_limit(0)).await;
    paid.send(OTHER).await.is_rejected(422, "key-reused");
    let gone = paid.send(FIRST).await;
    gone.is_rejected(410, "response-not-kept");
    assert_eq!(gone.header("location"), paid.first.header("location"));
    assert!(gone.header("location").is_some());
    paid.ran_once().await;
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_by_the_same_request_only() {
    let paid = Paid::with(|layer| layer).await;
    let pending = "state = 'pending', status = null, headers = null, body = null";
    paid.change(&format!("{pending}, lease_until = now() + interval '1 hour'")).await;
    for payload in [FIRST, OTHER] {
        paid.send(payload).await.is_rejected(409, "in-flight");
    }
    paid.change("lease_until = now() - interval '1 second'").await;
    paid.send(OTHER).await.is_rejected(422, "key-reused");
    paid.ran_once().await;
    let again = paid.send(FIRST).await;
    assert_eq!((again.status.as_u16(), again.is_replay()), (201, false), "{again:?}");
    assert_eq!(paid.gate.runs(), 2);
    paid.send(FIRST).await.replays(&again);
    paid.send(OTHER).await.is_rejected(422, "key-reused");
}

/// An hour's rollout: a newer version wrote the row.
#[tokio::test]
async fn a_fingerprint_of_an_unknown_version_is_refused_and_never_run() {
    let paid = Paid::with(|layer| layer).await;
    for fingerprint in [
        "set_byte(fingerprint, 0, 2)",
        "set_byte(fingerprint, 0, 0)",
        "set_byte(fingerprint, 0, 255)",
        "substr(fingerprint, 1, 1)",
        "fingerprint || '\\x00'",
    ] {
        let mut restore = paid.db.acquire().await.unwrap();
        let kept: Vec<u8> = sqlx::query_scalar("select fingerprint from idempotency.record")
            .fetch_one(&mut *restore)
            .await
            .unwrap();
        paid.change(&format!("fingerprint = {fingerprint}")).await;
        for payload in [FIRST, OTHER] {
            paid.send(payload).await.is_rejected(422, "key-reused");
        }
        sqlx::query("update idempotency.record set fingerprint = $1")
            .bind(kept)
            .execute(&mut *restore)
            .await
            .unwrap();
        paid.send(FIRST).await.replays(&paid.first);
    }
    paid.ran_once().await;
}

#[tokio::test]
async fn an_expired_record_leaves_the_key_to_any_request() {
    let paid = Paid::with(|layer| layer).await;
    paid.change("expires_at = now() - interval '1 second'").await;
    let other = paid.send(OTHER).await;
    assert_eq!((other.status.as_u16(), other.is_replay()), (201, false));
    paid.send(FIRST).await.is_rejected(422, "key-reused");
    paid.send(OTHER).await.replays(&other);
    assert_eq!(paid.gate.runs(), 2);
}

#[tokio::test]
async fn a_released_key_is_left_to_any_request() {
    let db = database().await;
    let gate = Gate::open();
    let runs = gate.clone();
    let handler = move || {
        let runs = runs.clone();
        async move { if runs.pass().await == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::CREATED } }
    };
    let service = serve_behind(layer(&db), handler).await;
    assert_eq!(service.post("/").key("k").json(FIRST).send().await.status, 502);
    let other = service.post("/").key("k").json(OTHER).send().await;
    assert_eq!((other.status.as_u16(), other.is_replay()), (201, false));
    service.post("/").key("k").json(FIRST).send().await.is_rejected(422, "key-reused");
}

/// A payment that was made with the key `k` and the first payload.
struct Paid {
    db: TestDb,
    gate: Gate,
    service: Service,
    first: Answer,
}

impl Paid {
    async fn with(configure: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let db = database().await;
        let gate = Gate::open();
        let service = serve(payment(&gate, configure(layer(&db)))).await;
        let first = service.post("/").key("k").json(FIRST).send().await;
        assert_eq!(first.status, 201, "{first:?}");
        Self { db, gate, service, first }
    }

    async fn send(&self, payload: &str) -> Answer {
        self.service.post("/").key("k").json(payload).send().await
    }

    /// Changes the record in the database.
    async fn change(&self, set: &str) {
        let changed = sqlx::query(AssertSqlSafe(format!("update idempotency.record set {set}")));
        assert_eq!(changed.execute(&*self.db).await.unwrap().rows_affected(), 1);
    }

    async fn ran_once(&self) {
        assert_eq!(self.gate.runs(), 1);
        assert_eq!(effects(&self.db, "paid").await, 1);
        no_transaction_is_left(&self.db).await;
    }
}
