//! Duplicates that come while one of them asks the database share its answer, and only that.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use devpg::TestDb;
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use crate::support::{
    Fate, Gate, Message, Proxy, database, effects, eventually, first_read, is_sound, layer, payment, records,
};

type Answered = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Another process: a layer of its own, whose first claim meets a fate as it reads.
struct There {
    db: TestDb,
    router: Router,
    gate: Gate,
    claims: Arc<AtomicUsize>,
    pool: sqlx::PgPool,
    _proxy: Proxy,
}

impl There {
    async fn with(db: TestDb, first: Fate) -> Self {
        let claims = Arc::new(AtomicUsize::new(0));
        let (counted, first) = (Arc::clone(&claims), first_read(first));
        let proxy = Proxy::to(&db, move |message: &Message| {
            if message.contains("begin isolation") {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            first(message)
        });
        let gate = Gate::open();
        let pool = proxy.pool(5).await;
        let router = payment(&gate, layer(&pool));
        Self { db, router, gate, claims, pool, _proxy: proxy }
    }

    /// One whose first claim reads when it is told.
    async fn held(db: TestDb) -> (Self, oneshot::Sender<()>) {
        let (tell, told) = oneshot::channel();
        (Self::with(db, Fate::Held(told)).await, tell)
    }

    /// A request that has begun to ask, or to wait for who does.
    async fn asks(&self, body: &str) -> Answered {
        let mut answered: Answered = Box::pin({
            let router = self.router.clone();
            let request = request(body);
            async move { router.oneshot(request).await.unwrap() }
        });
        std::future::poll_fn(|cx| {
            assert!(answered.as_mut().poll(cx).is_pending(), "it asks nobody");
            Poll::Ready(())
        })
        .await;
        answered
    }

    fn claims(&self) -> usize {
        self.claims.swap(0, Ordering::SeqCst)
    }
}

fn request(body: &str) -> Request<Body> {
    Request::post("/")
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

async fn text(response: Response) -> (StatusCode, bool, String) {
    let replayed = response.headers().contains_key("idempotent-replayed");
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, replayed, String::from_utf8(body.to_vec()).unwrap())
}

/// The key is settled, by another process.
async fn settled() -> (TestDb, String) {
    let db = database().await;
    let here = payment(&Gate::open(), layer(&db));
    let first = text(here.oneshot(request(FIRST)).await.unwrap()).await;
    assert_eq!(first.0, 201);
    (db, first.2)
}

#[tokio::test]
async fn duplicates_that_come_while_one_asks_share_the_record_and_each_compares_its_fingerprint() {
    let (db, first) = settled().await;
    let (there, tell) = There::held(db).await;
    let leader = there.asks(FIRST).await;
    let mut followers = Vec::new();
    for body in [FIRST, OTHER, FIRST, OTHER] {
        followers.push((body, there.asks(body).await));
    }
    tell.send(()).unwrap();
    assert_eq!(text(leader.await).await, (StatusCode::CREATED, true, first.clone()));
    for (body, follower) in followers {
        let (status, replayed, answer) = text(follower.await).await;
        if body == FIRST {
            assert_eq!((status.as_u16(), replayed, &answer), (201, true, &first));
        } else {
            assert!(status == 422 && answer.contains("key-reused"), "{status} {answer}");
        }
    }
    assert_eq!((there.claims(), there.gate.runs()), (1, 0));
    is_sound(&there.db, &there.pool).await;
}

#[tokio::test]
async fn one_that_asks_with_another_payload_does_not_decide_for_the_others() {
    let (db, first) = settled().await;
    let (there, tell) = There::held(db).await;
    let leader = there.asks(OTHER).await;
    let follower = there.asks(FIRST).await;
    tell.send(()).unwrap();
    assert_eq!(leader.await.status(), 422);
    assert_eq!(text(follower.await).await, (StatusCode::CREATED, true, first));
}

/// A lapsed claim may be taken over by the same request, though the one that asked may not.
#[tokio::test]
async fn a_refused_takeover_is_not_shared() {
    let (db, _) = settled().await;
    let lapse = "update idempotency.record set state = 'pending', status = null, headers = null, body = null,
                 lease_until = now() - interval '1 second'";
    sqlx::query(lapse).execute(&*db).await.unwrap();
    let (there, tell) = There::held(db).await;
    let leader = there.asks(OTHER).await;
    let follower = there.asks(FIRST).await;
    tell.send(()).unwrap();
    assert_eq!(leader.await.status(), 422);
    let (status, replayed, _) = text(follower.await).await;
    assert_eq!((status.as_u16(), replayed, there.gate.runs()), (201, false, 1));
}

#[tokio::test]
async fn when_the_one_that_asks_hangs_up_the_next_one_asks() {
    let (db, first) = settled().await;
    let (there, _never) = There::held(db).await;
    let leader = tokio::spawn(there.asks(FIRST).await);
    eventually(std::panic::Location::caller(), async || {
        if there.claims.load(Ordering::SeqCst) == 1 { Ok(()) } else { Err("it does not ask".to_owned()) }
    })
    .await;
    let followers = [there.asks(FIRST).await, there.asks(FIRST).await];
    leader.abort();
    for follower in followers {
        assert_eq!(text(follower.await).await, (StatusCode::CREATED, true, first.clone()));
    }
    assert_eq!((there.claims(), there.gate.runs()), (2, 0));
}

#[tokio::test]
async fn a_claim_that_fails_is_refused_to_all_who_wait_for_it_and_to_nobody_else() {
    let (db, first) = settled().await;
    let there = There::with(db, Fate::Lost).await;
    let asking = [there.asks(FIRST).await, there.asks(FIRST).await, there.asks(OTHER).await];
    for asks in asking {
        let (status, _, answer) = text(asks.await).await;
        assert!(status == 503 && answer.contains("database-unavailable"), "{status} {answer}");
    }
    assert_eq!(there.claims(), 1);
    let again = there.asks(FIRST).await;
    assert_eq!(text(again.await).await, (StatusCode::CREATED, true, first));
}

#[tokio::test]
async fn what_is_in_flight_elsewhere_is_asked_for_again_and_replayed_when_it_is_settled() {
    let db = database().await;
    let gate = Gate::shut();
    let executing = tokio::spawn(payment(&gate, layer(&db)).oneshot(request(FIRST)));
    gate.reached(1).await;
    let (there, tell) = There::held(db).await;
    let asking = [there.asks(FIRST).await, there.asks(OTHER).await];
    tell.send(()).unwrap();
    for asks in asking {
        let (status, _, answer) = text(asks.await).await;
        assert!(status == 409 && answer.contains("in-flight"), "{status} {answer}");
    }
    assert_eq!(there.claims(), 1);
    gate.let_pass(1);
    let first = text(executing.await.unwrap().unwrap()).await.2;
    let started = std::time::Instant::now();
    let again = loop {
        let again = text(there.router.clone().oneshot(request(FIRST)).await.unwrap()).await;
        if again.0 != 409 {
            break again;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{again:?}");
        tokio::task::yield_now().await;
    };
    assert_eq!(again, (StatusCode::CREATED, true, first));
    assert_eq!((records(&there.db).await, effects(&there.db, "paid").await), (1, 1));
}

const FIRST: &str = r#"{"amount":1}"#;
const OTHER: &str = r#"{"amount":2}"#;
