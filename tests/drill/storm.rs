//! Thousands of duplicates of one key in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx};

use crate::network::{Fate, Network};
use crate::site::{admin, migrate, server};

/// What a process of its own would have: a pool, through a network that counts the claims, and the
/// layer's knowledge of what is in flight here.
struct Process {
    router: Router,
    pool: PgPool,
    claims: Arc<AtomicUsize>,
    _network: Network,
}

impl Process {
    async fn start(
        server: &devpg::Server,
        open: &watch::Sender<bool>,
        set: impl Fn(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self {
        let claims = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&claims);
        let network = Network::deciding(server.port(), move |frame| {
            if frame.kind == b'Q' && frame.bytes[5..].starts_with(b"begin isolation") {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Fate::Forward
        })
        .await;
        let options = server.tcp_options("postgres").port(network.port);
        let pool =
            PgPoolOptions::new().max_connections(4).min_connections(4).connect_with(options).await.unwrap();
        let layer = set(IdempotencyLayer::new(pool.clone(), Tenant::single()));
        let gate = open.clone();
        let slow = async move |mut tx: Tx| {
            gate.subscribe().wait_for(|open| *open).await.unwrap();
            pay(&mut tx).await
        };
        let quick = async |mut tx: Tx| pay(&mut tx).await;
        let router = Router::new()
            .route("/slow", post(slow).route_layer(layer.clone().operation("slow")))
            .route("/quick", post(quick).route_layer(layer.operation("quick")));
        Self { router, pool, claims, _network: network }
    }

    fn send(&self, path: &str, key: &str) -> impl Future<Output = (StatusCode, String)> + Send + use<> {
        let request = Request::post(path).header("idempotency-key", key).body(Body::empty()).unwrap();
        let router = self.router.clone();
        async move {
            let response = router.oneshot(request).await.unwrap();
            let status = response.status();
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        }
    }

    fn storm(&self, duplicates: usize) -> JoinSet<(StatusCode, String)> {
        (0..duplicates).map(|_| self.send("/slow", "storm")).collect()
    }

    fn claims(&self) -> usize {
        self.claims.swap(0, Ordering::SeqCst)
    }

    /// Other keys keep their speed, and the pool has a connection left for others.
    async fn serves_others(&self, what: &str) {
        for number in 0..10 {
            let started = Instant::now();
            let (status, body) = self.send("/quick", &format!("{what}-{number}")).await;
            assert_eq!(status, 201, "{body}");
            assert!(started.elapsed() < Duration::from_secs(1), "{what}: {:?}", started.elapsed());
        }
        assert!(self.pool.acquire().await.is_ok());
        self.claims.fetch_sub(10, Ordering::SeqCst);
    }
}

async fn pay(tx: &mut Tx) -> (StatusCode, String) {
    let id: i64 = sqlx::query_scalar("insert into effect (intent) values (1) returning id")
        .fetch_one(&mut **tx)
        .await
        .unwrap();
    (StatusCode::CREATED, id.to_string())
}

async fn in_flight(pool: &PgPool) {
    let locked = "select count(*) from pg_locks where locktype = 'advisory' and granted";
    let started = Instant::now();
    while sqlx::query_scalar::<_, i64>(locked).fetch_one(pool).await.unwrap() == 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "nothing is in flight");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_thousand_duplicates_that_wait_one_asks_for_all() {
    let server = server();
    let admin = admin(server.options("postgres"));
    migrate(&admin).await;
    let open = watch::Sender::new(false);
    let wait = |layer: IdempotencyLayer| layer.wait(Duration::from_secs(60));
    let here = Process::start(&server, &open, wait).await;
    let there = Process::start(&server, &open, wait).await;

    let leader = tokio::spawn(here.send("/slow", "storm"));
    in_flight(&admin).await;
    assert_eq!(here.claims(), 1);
    let (followers, strangers) = (here.storm(1000), there.storm(1000));
    let started = Instant::now();
    here.serves_others("here").await;
    there.serves_others("there").await;
    while started.elapsed() < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Where the leader runs nobody asks; elsewhere one does, four times a second at last.
    assert_eq!(here.claims(), 0);
    let asked = there.claims();
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!((1..20 + 5 * seconds).contains(&asked), "{asked} claims in {seconds} s");

    open.send_replace(true);
    let first = leader.await.unwrap();
    assert_eq!(first.0, 201);
    for answer in followers.join_all().await.into_iter().chain(strangers.join_all().await) {
        assert_eq!(answer, first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_duplicates_that_do_not_wait_are_told_without_the_database() {
    let server = server();
    let admin = admin(server.options("postgres"));
    migrate(&admin).await;
    let open = watch::Sender::new(false);
    let here = Process::start(&server, &open, |layer| layer).await;
    let leader = tokio::spawn(here.send("/slow", "storm"));
    in_flight(&admin).await;
    here.claims();
    let told = here.storm(2000).join_all().await;
    assert!(told.iter().all(|(status, _)| *status == 409));
    assert_eq!(here.claims(), 0);
    open.send_replace(true);
    assert_eq!(leader.await.unwrap().0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_duplicates_that_do_not_wait_cost_another_process_thirty_claims_a_second() {
    cost_thirty_claims_a_second(2000).await;
}

/// Most of the time nobody is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_duplicates_that_do_not_wait_cost_another_process_thirty_claims_a_second() {
    cost_thirty_claims_a_second(100).await;
}

/// They come all the time, twice a second each.
async fn cost_thirty_claims_a_second(duplicates: u32) {
    let server = server();
    let admin = admin(server.options("postgres"));
    migrate(&admin).await;
    let open = watch::Sender::new(false);
    let here = Process::start(&server, &open, |layer| layer).await;
    let there = Arc::new(Process::start(&server, &open, |layer| layer).await);
    let leader = tokio::spawn(here.send("/slow", "storm"));
    in_flight(&admin).await;
    let started = Instant::now();
    let mut storm = JoinSet::new();
    for n in 0..duplicates {
        let there = Arc::clone(&there);
        storm.spawn(async move {
            let mut told = 0;
            tokio::time::sleep(Duration::from_millis(500) * n / duplicates).await;
            while started.elapsed() < Duration::from_secs(3) {
                let (status, body) = there.send("/slow", "storm").await;
                assert!(status == 409 && body.contains("in-flight"), "{status} {body}");
                told += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            told
        });
    }
    there.serves_others("there").await;
    let told: u32 = storm.join_all().await.into_iter().sum();
    let (claims, took) = (there.claims(), started.elapsed());
    assert!(told > 2 * duplicates, "no storm: {told}");
    let most = 10 + 30 * usize::try_from(took.as_millis()).unwrap() / 1000;
    assert!((1..=most).contains(&claims), "{claims} claims in {took:?}");

    open.send_replace(true);
    let first = leader.await.unwrap();
    assert_eq!(first.0, 201);
    let settled = Instant::now();
    let mut again = there.send("/slow", "storm").await;
    while again.0 == 409 {
        assert!(settled.elapsed() < Duration::from_secs(1), "it is settled, and {again:?}");
        again = there.send("/slow", "storm").await;
    }
    assert_eq!(again, first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_keys_at_once_are_503_before_the_pool_starves() {
    let server = server();
    let admin = admin(server.options("postgres"));
    migrate(&admin).await;
    let open = watch::Sender::new(false);
    let limit = |layer: IdempotencyLayer| layer.acquire_timeout(Duration::from_secs(1)).max_in_flight(2);
    let here = Process::start(&server, &open, limit).await;
    let mut all: JoinSet<_> = (0..200).map(|n| here.send("/slow", &format!("key-{n}"))).collect();
    for told in 0..198 {
        let (status, body) = all.join_next().await.unwrap().unwrap();
        assert!(status == 503 && body.contains("too-many-in-flight"), "{told}: {status} {body}");
        if told % 50 == 0 {
            // Two of four are left, at once.
            let (a, b) = tokio::join!(here.pool.acquire(), here.pool.acquire());
            assert!(a.is_ok() && b.is_ok());
        }
    }
    open.send_replace(true);
    assert!(all.join_all().await.iter().all(|(status, _)| *status == 201));
    let effects: i64 = sqlx::query_scalar("select count(*) from effect").fetch_one(&admin).await.unwrap();
    assert_eq!(effects, 2);
}
