//! Rows that this version does not write: a clear refusal, and never a second run.

use devpg::TestDb;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower_idempotency::{RejectionKind, Sweeper, Tx};

use crate::support::{
    Answer, Fate, Gate, Logs, Proxy, Service, database, effects, eventually, first_read, is_sound, layer,
    no_transaction_is_left, operation_of, payment, records, serve, serve_behind, states,
};

/// A settled payment, in a table that takes any row: a newer version's.
struct Paid {
    db: TestDb,
    gate: Gate,
    service: Service,
    logs: Logs,
}

impl Paid {
    async fn new() -> Self {
        let logs = Logs::capture();
        let db = database().await;
        let gate = Gate::open();
        let service = serve(payment(&gate, layer(&db))).await;
        assert_eq!(service.post("/").key("k").json("{}").send().await.status, 201);
        Self { db, gate, service, logs }
    }

    /// Changes the row, and asserts that its key is refused with a line in the log that says why and
    /// which row it is; then puts the row back.
    async fn is_unreadable(&self, set: &str, why: &str) {
        let keep = "create table kept as table idempotency.record";
        sqlx::raw_sql(keep).execute(&*self.db).await.unwrap();
        let change = format!("update idempotency.record set {set} returning claim_id::text");
        let claim: String = sqlx::query_scalar(AssertSqlSafe(change)).fetch_one(&*self.db).await.unwrap();
        for _ in 0..2 {
            let before = self.logs.lines_with(why).len();
            let refused = self.service.post("/").key("k").json("{}").send().await;
            refused.is_rejected(500, "record-unreadable");
            assert_eq!(
                (refused.json()["retry"].as_str(), refused.header("retry-after")),
                (Some("never"), None)
            );
            let lines = self.logs.lines_with(why);
            assert_eq!(lines.len(), before + 1, "{set}: {}", self.logs.text());
            let line = &lines[before];
            assert!(
                line.contains("ERROR") && line.contains(&claim) && line.contains("operation=\"test\""),
                "{line}"
            );
        }
        // Its own payload is compared first.
        let reused = self.service.post("/").key("k").json("[]").send().await;
        reused.is_rejected(422, "key-reused");
        assert_eq!((self.gate.runs(), effects(&self.db, "paid").await), (1, 1), "{set}");
        let back =
            "delete from idempotency.record; insert into idempotency.record table kept; drop table kept";
        sqlx::raw_sql(back).execute(&*self.db).await.unwrap();
    }
}

#[tokio::test]
async fn a_row_in_an_unknown_state_is_refused_and_never_run() {
    let paid = Paid::new().await;
    for state in ["archived", "COMPLETED", ""] {
        // What its times mean is not known, either.
        for expires in ["now() + interval '1 hour'", "now() - interval '1 hour'"] {
            let set = format!("state = '{state}', expires_at = {expires}");
            paid.is_unreadable(&set, "its state is not one of a settled record").await;
        }
    }
    is_sound(&paid.db, &paid.db).await;
}

#[tokio::test]
async fn a_row_in_an_unknown_state_is_not_swept() {
    let paid = Paid::new().await;
    sqlx::raw_sql("update idempotency.record set state = 'archived', expires_at = now() - interval '1 hour'")
        .execute(&*paid.db)
        .await
        .unwrap();
    let swept = Sweeper::new(paid.db.clone()).run_once().await.unwrap();
    assert_eq!((swept.deleted, swept.tombstoned), (0, 0));
    assert_eq!(states(&paid.db).await, ["archived"]);
}

#[tokio::test]
async fn a_settled_row_without_a_status_or_with_one_that_is_none_is_refused_and_never_run() {
    let paid = Paid::new().await;
    for state in ["completed", "failed"] {
        for status in ["null", "0", "99", "1000", "-201"] {
            let set = format!("state = '{state}', status = {status}");
            paid.is_unreadable(&set, "it has no status that HTTP knows").await;
        }
        paid.is_unreadable(
            &format!("state = '{state}', status = null, headers = null, body = null"),
            "no status",
        )
        .await;
    }
}

#[tokio::test]
async fn a_settled_row_whose_headers_are_missing_or_of_an_unknown_format_is_refused_and_never_run() {
    let paid = Paid::new().await;
    for state in ["completed", "failed"] {
        for headers in [
            "null",
            "''",
            "set_byte(headers, 0, 0)",
            "set_byte(headers, 0, 2)",
            "substr(headers, 1, length(headers) - 1)",
            "headers || '\\x00'",
            "'\\x01ffff'",
        ] {
            let set = format!("state = '{state}', headers = {headers}");
            paid.is_unreadable(&set, "its headers are not of a known format").await;
        }
    }
}

#[tokio::test]
async fn an_operation_whose_row_is_in_an_unknown_state_is_an_error_and_does_not_run() {
    let paid = Paid::new().await;
    let operation = operation_of(&paid.db, "jobs");
    type Outcome = Result<i64, tower_idempotency::Error>;
    let ran = operation.run("k", &(), async |_: Tx| -> Outcome { Ok(1) }).await.unwrap();
    assert!(ran.is_executed());
    for set in ["state = 'archived'", "state = 'archived', expires_at = now() - interval '1 hour'"] {
        let change = format!("update idempotency.record set {set} where operation = 'jobs'");
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&*paid.db).await.unwrap();
        let again = operation.run("k", &(), async |_: Tx| -> Outcome { panic!("it runs again") }).await;
        assert_eq!(again.unwrap_err().rejection(), Some(RejectionKind::RecordUnreadable));
    }
}

/// Another process that was asked for the key, has claimed it, and reads when it is told.
struct Elsewhere {
    service: Service,
    pool: PgPool,
    asks: JoinHandle<Answer>,
    tell: oneshot::Sender<()>,
    _proxy: Proxy,
}

impl Elsewhere {
    async fn asks(db: &TestDb, gate: &Gate) -> Self {
        let (tell, told) = oneshot::channel();
        let proxy = Proxy::to(db, first_read(Fate::Held(told)));
        let pool = proxy.pool(2).await;
        let service = serve(payment(gate, layer(&pool))).await;
        let asks = tokio::spawn(service.post("/").key("k").send());
        has_claimed(db).await;
        Self { service, pool, asks, tell, _proxy: proxy }
    }
}

/// Waits until a claim's transaction is open, and has made its first statement.
async fn has_claimed(db: &TestDb) {
    eventually(std::panic::Location::caller(), async || {
        let open: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid()
               and state = 'idle in transaction' and query like '-- Take the key%'",
        )
        .fetch_one(&**db)
        .await
        .unwrap();
        if open == 1 { Ok(()) } else { Err(format!("{open} claims are open")) }
    })
    .await;
}

/// The record is gone, so that the key is new; nobody else has it meanwhile.
#[tokio::test]
async fn a_row_that_is_deleted_between_the_claim_and_the_read_leaves_the_key_to_one_execution() {
    let db = database().await;
    let gate = Gate::open();
    let here = serve(payment(&gate, layer(&db))).await;
    assert_eq!(here.post("/").key("k").send().await.status, 201);
    let there = Elsewhere::asks(&db, &gate).await;
    let expired = "update idempotency.record set expires_at = now() - interval '1 second'";
    sqlx::query(expired).execute(&*db).await.unwrap();
    assert_eq!(Sweeper::new(db.clone()).run_once().await.unwrap().deleted, 1);
    there.tell.send(()).unwrap();
    let anew = there.asks.await.unwrap();
    assert_eq!((anew.status.as_u16(), anew.is_replay()), (201, false), "{anew:?}");
    for service in [&here, &there.service] {
        service.post("/").key("k").send().await.replays(&anew);
    }
    assert_eq!((gate.runs(), records(&db).await, effects(&db, "paid").await), (2, 1, 2));
    is_sound(&db, &there.pool).await;
}

/// Deleted, and claimed by another: who read nothing does not run beside it.
#[tokio::test]
async fn a_row_that_is_deleted_and_claimed_between_the_claim_and_the_read_is_in_flight() {
    let db = database().await;
    let gate = Gate::shut();
    gate.let_pass(1);
    let here = serve(payment(&gate, layer(&db))).await;
    assert_eq!(here.post("/").key("k").send().await.status, 201);
    let there = Elsewhere::asks(&db, &gate).await;
    sqlx::query("delete from idempotency.record").execute(&*db).await.unwrap();
    // It cannot have the lock, which the one that reads holds: the answer is the same for both.
    here.post("/").key("k").send().await.is_rejected(409, "in-flight");
    there.tell.send(()).unwrap();
    gate.reached(2).await;
    here.post("/").key("k").send().await.is_rejected(409, "in-flight");
    gate.let_pass(2);
    let anew = there.asks.await.unwrap();
    assert_eq!((anew.status.as_u16(), anew.is_replay()), (201, false), "{anew:?}");
    assert_eq!((gate.runs(), records(&db).await), (2, 1));
    no_transaction_is_left(&db).await;
}

/// The one that had the key has undone everything by then.
#[tokio::test]
async fn a_claim_that_is_undone_before_its_duplicate_reads_leaves_the_key_to_the_duplicate() {
    let db = database().await;
    let gate = Gate::shut();
    let waits = gate.clone();
    let fails = async move |mut tx: Tx| {
        crate::support::effect(&mut tx, "paid").await.unwrap();
        waits.pass().await;
        axum::http::StatusCode::INTERNAL_SERVER_ERROR
    };
    let here = serve_behind(layer(&db), fails).await;
    let first = tokio::spawn(here.post("/").key("k").send());
    gate.reached(1).await;
    let runs = Gate::open();
    let there = Elsewhere::asks(&db, &runs).await;
    gate.let_pass(1);
    assert_eq!(first.await.unwrap().status, 500);
    there.tell.send(()).unwrap();
    let second = there.asks.await.unwrap();
    assert_eq!((second.status.as_u16(), second.is_replay()), (201, false), "{second:?}");
    assert_eq!((runs.runs(), records(&db).await, effects(&db, "paid").await), (1, 1, 1));
    is_sound(&db, &there.pool).await;
}
