//! With `.wait(..)` a duplicate waits for the response, and holds no connection meanwhile.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use axum::routing::post;
use sqlx::PgPool;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx};

use crate::support::{
    Answer, Gate, Service, counted_pool, database, effect, effects, layer_of, no_transaction_is_left, paid,
    payment, serve, states,
};

#[tokio::test(flavor = "multi_thread")]
async fn two_identical_requests_at_once_get_the_same_response() {
    all_get_the_same_response(2, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_identical_requests_at_once_get_the_same_response() {
    all_get_the_same_response(100, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_identical_requests_get_the_same_response_with_a_pool_of_two() {
    all_get_the_same_response(100, 2).await;
}

async fn all_get_the_same_response(requests: usize, connections: u32) {
    let db = database().await;
    let gate = Gate::shut();
    let (layer, seen) = counting(&db.pool(connections).await);
    let service = serve(payment(&gate, layer)).await;
    let answers = all_at_once(&service, requests);
    gate.reached(1).await;
    seen.wait(requests).await;
    gate.let_pass(1);
    let answers = answers.join_all().await;
    let first: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_replay()).collect();
    let [first] = first[..] else { panic!("not one execution: {answers:?}") };
    assert_eq!(first.status, 201);
    answers.iter().filter(|answer| *answer != first).for_each(|answer| answer.replays(first));
    assert_eq!(gate.runs(), 1);
    assert_eq!(effects(&db, "paid").await, 1);
    no_transaction_is_left(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_holds_no_connection() {
    let db = database().await;
    let pool = db.pool(2).await;
    let gate = Gate::shut();
    let (layer, seen) = counting(&pool);
    let service = serve(payment(&gate, layer)).await;
    let answers = all_at_once(&service, 30);
    gate.reached(1).await;
    seen.wait(30).await;
    others_can_use(&pool).await;
    gate.let_pass(1);
    for answer in answers.join_all().await {
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

/// Nobody wakes these: they look again and again, through the one connection of their pool.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_another_process_holds_no_connection_and_ends_in_its_response() {
    let db = database().await;
    let (pool, attempts) = counted_pool(&db, 1).await;
    let gate = Gate::shut();
    let here = serve(payment(&gate, counting(&db.pool(2).await).0)).await;
    let (layer, seen) = counting(&pool);
    let there = serve(payment(&gate, layer)).await;
    let first = all_at_once(&here, 1);
    gate.reached(1).await;
    let answers = all_at_once(&there, 30);
    seen.wait(30).await;
    // One asks for all; often enough that its pauses are long.
    attempts.reaches(attempts.count() + 10).await;
    others_can_use(&pool).await;
    gate.let_pass(1);
    let first = first.join_all().await.remove(0);
    assert_eq!(first.status, 201);
    for answer in answers.join_all().await {
        answer.replays(&first);
    }
    assert_eq!(gate.runs(), 1);
    no_transaction_is_left(&db).await;
}

/// A hundred times in ten seconds: far more often than those who wait ask again, which is four times
/// a second.
async fn others_can_use(pool: &PgPool) {
    let used = async {
        for _ in 0..100 {
            let one: i32 = sqlx::query_scalar("select 1").fetch_one(pool).await.unwrap();
            assert_eq!(one, 1);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), used).await.expect("the connections are held");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_fails_one_of_those_who_wait_runs_and_the_others_replay_it() {
    let db = database().await;
    let gate = Gate::shut();
    let (layer, seen) = counting(&db.pool(2).await);
    let service = serve(failing_once(&gate, layer)).await;
    let leader = all_at_once(&service, 1);
    gate.reached(1).await;
    let answers = all_at_once(&service, 20);
    seen.wait(21).await;
    gate.let_pass(usize::MAX);

    let leader = leader.join_all().await.remove(0);
    assert_eq!((leader.status.as_u16(), leader.text()), (500, "try again"));
    assert!(!leader.is_replay());
    one_ran_and_the_others_replay_it(&answers.join_all().await);
    assert_eq!(gate.runs(), 2);
    assert_eq!(effects(&db, "attempted").await, 0);
    assert_eq!(effects(&db, "paid").await, 1);
    assert_eq!(states(&db).await, ["completed"]);
    no_transaction_is_left(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_fails_at_another_process_one_of_those_who_wait_runs() {
    let db = database().await;
    let gate = Gate::shut();
    let here = serve(failing_once(&gate, counting(&db.pool(2).await).0)).await;
    let (pool, attempts) = counted_pool(&db, 2).await;
    let there = serve(failing_once(&gate, counting(&pool).0)).await;
    let leader = all_at_once(&here, 1);
    gate.reached(1).await;
    let answers = all_at_once(&there, 10);
    attempts.reaches(attempts.count() + 10).await;
    gate.let_pass(usize::MAX);
    assert_eq!(leader.join_all().await.remove(0).status, 500);
    one_ran_and_the_others_replay_it(&answers.join_all().await);
    assert_eq!(gate.runs(), 2);
    assert_eq!(effects(&db, "paid").await, 1);
}

fn one_ran_and_the_others_replay_it(answers: &[Answer]) {
    let ran: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_replay()).collect();
    let [ran] = ran[..] else { panic!("not one execution: {answers:?}") };
    assert_eq!(ran.status, 201, "{ran:?}");
    answers.iter().filter(|answer| *answer != ran).for_each(|answer| answer.replays(ran));
}

/// The first execution ends in a 500, after it has written.
fn failing_once(gate: &Gate, layer: IdempotencyLayer) -> Router {
    let gate = gate.clone();
    let pay = move |mut tx: Tx| {
        let gate = gate.clone();
        async move {
            effect(&mut tx, "attempted").await.unwrap();
            if gate.pass().await == 1 {
                return (StatusCode::INTERNAL_SERVER_ERROR, "try again").into_response();
            }
            sqlx::query("delete from effect where name = 'attempted'").execute(&mut *tx).await.unwrap();
            paid(&mut tx).await.into_response()
        }
    };
    Router::new().route("/", post(pay).route_layer(layer))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_before_the_response_ends_in_409() {
    let db = database().await;
    let gate = Gate::shut();
    let short = Duration::from_millis(300);
    let here = serve(payment(&gate, counting(&db.pool(2).await).0.wait(short))).await;
    let there = serve(payment(&gate, counting(&db.pool(2).await).0.wait(short))).await;
    let first = all_at_once(&here, 1);
    gate.reached(1).await;
    for service in [&here, &there] {
        let started = Instant::now();
        for answer in all_at_once(service, 5).join_all().await {
            answer.is_rejected(409, "in-flight");
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        assert!(started.elapsed() >= short, "it did not wait: {:?}", started.elapsed());
        assert!(started.elapsed() < short * 20, "it waited too long: {:?}", started.elapsed());
    }
    gate.let_pass(1);
    let first = first.join_all().await.remove(0);
    there.post("/").key("k").json("{}").send().await.replays(&first);
    assert_eq!(gate.runs(), 1);
}

/// A layer that waits, and that counts the requests it has seen: its tenant is asked for right
/// before the claim.
fn counting(pool: &PgPool) -> (IdempotencyLayer, Seen) {
    let count = watch::Sender::new(0);
    let seen = Seen(count.subscribe());
    let tenant = Tenant::from_fn(move |_: &Parts| {
        count.send_modify(|count| *count += 1);
        "default"
    });
    let layer = layer_of(pool, tenant).operation("test");
    (layer.wait(LONG).acquire_timeout(LONG), seen)
}

struct Seen(watch::Receiver<usize>);

impl Seen {
    async fn wait(&self, requests: usize) {
        self.0.clone().wait_for(|count| *count >= requests).await.unwrap();
    }
}

fn all_at_once(service: &Service, requests: usize) -> JoinSet<Answer> {
    (0..requests).map(|_| service.post("/").key("k").json("{}").send()).collect()
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_are_told_together_that_the_database_is_away() {
    let db = database().await;
    let pool = db.pool(1).await;
    let held = pool.acquire().await.unwrap();
    let layer = IdempotencyLayer::new(pool.clone(), Tenant::single())
        .acquire_timeout(Duration::from_millis(300))
        .wait(Duration::from_secs(5));
    let service = serve(payment(&Gate::open(), layer)).await;
    let mut requests = JoinSet::new();
    for _ in 0..100 {
        requests.spawn(service.post("/").key("k").json("{}").send());
    }
    // One after the other they would wait for half a minute, and most be told that it is in flight.
    while let Some(answer) = requests.join_next().await {
        assert_eq!(answer.unwrap().status, 503);
    }
    drop(held);
    assert_eq!(service.post("/").key("k").json("{}").send().await.status, 201);
}
