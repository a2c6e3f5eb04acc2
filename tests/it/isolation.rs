//! Stricter isolation: for one route, or as the database's default.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devpg::TestDb;
use sqlx::{PgPool, Row as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tower_idempotency::{Isolation, Settlement, Tx};

use crate::support::{
    Answer, Call, Runs, Service, database, effect, effects, is_sound, layer, paid, serve, serve_behind,
    states,
};

/// Both handlers count the effects before either of them has one: only one can have been first.
async fn count_and_pay(mut tx: Tx, runs: Runs, both: Arc<Barrier>) -> Response {
    let counted = async {
        let count: i64 =
            sqlx::query_scalar("select count(*) from effect").persistent(false).fetch_one(&mut *tx).await?;
        if runs.next() <= 2 {
            both.wait().await;
        }
        effect(&mut tx, "paid").await?;
        Ok::<i64, sqlx::Error>(count)
    };
    match counted.await {
        Ok(count) => (StatusCode::CREATED, count.to_string()).into_response(),
        Err(error) if Settlement::is_rerun(&error) => {
            (StatusCode::SERVICE_UNAVAILABLE, Settlement::Rerun, ()).into_response()
        }
        Err(error) => panic!("{error}"),
    }
}

/// The bodies of two handlers that meet, and how often the handler ran.
async fn two_meet(db: &TestDb, isolation: Isolation) -> (Vec<String>, usize) {
    let runs = Runs::default();
    let (counted, both) = (runs.clone(), Arc::new(Barrier::new(2)));
    let handler = async move |tx: Tx| count_and_pay(tx, counted.clone(), Arc::clone(&both)).await;
    let layer = layer(db).isolation(isolation);
    let service = serve_behind(layer, handler).await;
    let (a, b) = tokio::join!(service.post("/").key("a").send(), service.post("/").key("b").send());
    for (key, answer) in [("a", &a), ("b", &b)] {
        assert_eq!(answer.status, 201, "{answer:?}");
        service.post("/").key(key).send().await.replays(answer);
    }
    let mut bodies = vec![a.text().to_owned(), b.text().to_owned()];
    bodies.sort();
    assert_eq!(effects(db, "paid").await, 2);
    assert_eq!(states(db).await, ["completed", "completed"]);
    is_sound(db, db).await;
    (bodies, runs.count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_serializable_handlers_that_meet_one_runs_again_and_sees_the_other() {
    let db = database().await;
    assert_eq!(two_meet(&db, Isolation::Serializable).await, (vec!["0".into(), "1".into()], 3));
}

/// That the level is the one asked for, and not the server's default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_read_committed_handlers_that_meet_both_believe_to_be_first() {
    let db = strict_database("serializable").await;
    assert_eq!(two_meet(&db, Isolation::ReadCommitted).await, (vec!["0".into(), "0".into()], 2));
}

async fn strict_database(level: &str) -> TestDb {
    let db = database().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "do $$ begin
           execute format('alter database %I set default_transaction_isolation = {level:?}', current_database());
         end $$"
    ).replace('"', "''")))
    .execute(&*db)
    .await
    .unwrap();
    db
}

/// A service with connections that have the database's default, and one that pays or refuses.
async fn strict_service(db: &TestDb, level: &str, layered: Isolation) -> (Service, PgPool) {
    let pool = db.pool(5).await;
    let shown = sqlx::raw_sql("show default_transaction_isolation").fetch_one(&pool).await.unwrap();
    assert_eq!(shown.get::<&str, _>(0), level);
    let layer = layer(&pool).isolation(layered).wait(Duration::from_secs(20));
    let pay = async |mut tx: Tx| paid(&mut tx).await;
    let refuse = async |mut tx: Tx| {
        let id = effect(&mut tx, "refused").await.unwrap();
        (StatusCode::PAYMENT_REQUIRED, id.to_string())
    };
    let router = Router::new()
        .route("/pay", post(pay).route_layer(layer.clone().operation("pay")))
        .route("/refuse", post(refuse).route_layer(layer.operation("refuse")));
    (serve(router).await, pool)
}

/// Twenty at once, each at one of two processes: the same answer for all. Who is told to wait, as one
/// is between a refusal's rollback and its record, asks again.
async fn race(services: &[&Service], path: &str) -> Answer {
    let mut answers = JoinSet::new();
    for number in 0..20 {
        let service = services[number % services.len()];
        let (client, address, path) = (service.client.clone(), service.address, path.to_owned());
        answers.spawn(async move {
            loop {
                let answer = Call::new(&client, address, "POST", &path).key("race").send().await;
                if answer.status != 409 {
                    return answer;
                }
            }
        });
    }
    let answers = answers.join_all().await;
    let first = answers.iter().find(|answer| !answer.is_replay()).unwrap().clone();
    for answer in answers {
        assert_eq!((answer.status, answer.text()), (first.status, first.text()));
    }
    first
}

async fn everything_works(level: &str, layered: Isolation) {
    let db = strict_database(level).await;
    let (one, pool) = strict_service(&db, level, layered).await;
    let (two, other) = strict_service(&db, level, layered).await;
    let paid = race(&[&one, &two], "/pay").await;
    assert_eq!(paid.status, 201);
    one.post("/pay").key("race").send().await.replays(&paid);
    let refused = race(&[&one, &two], "/refuse").await;
    assert_eq!(refused.status, 402);
    two.post("/refuse").key("race").send().await.replays(&refused);
    two.post("/pay").key("race").json("{}").send().await.is_rejected(422, "key-reused");
    assert_eq!((effects(&db, "paid").await, effects(&db, "refused").await), (1, 0));
    assert_eq!(states(&db).await, ["completed", "failed"]);
    is_sound(&db, &pool).await;
    is_sound(&db, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_where_repeatable_read_is_the_default() {
    everything_works("repeatable read", Isolation::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_where_serializable_is_the_default() {
    everything_works("serializable", Isolation::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_on_a_serializable_route() {
    everything_works("serializable", Isolation::Serializable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_on_a_repeatable_read_route() {
    everything_works("repeatable read", Isolation::RepeatableRead).await;
}
