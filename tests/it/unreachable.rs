//! The database is away: 503 in bounded time, and works again when it is back.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use devpg::Server;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tower_idempotency::{Sweeper, Tx};

use crate::support::{Service, effect, effects, layer, serve_behind, states};

async fn start(server: &Server) -> (PgPool, Service) {
    let pool =
        PgPoolOptions::new().max_connections(3).connect_with(server.options("postgres")).await.unwrap();
    tower_idempotency::migrate(&pool).await.unwrap();
    let table = "create table effect (id bigint generated always as identity, name text not null)";
    sqlx::raw_sql(table).execute(&pool).await.unwrap();
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let layer = layer(&pool).acquire_timeout(Duration::from_millis(500));
    let service = serve_behind(layer, handler).await;
    (pool, service)
}

async fn is_unavailable(service: &Service, key: &str) {
    let started = Instant::now();
    let answer = service.post("/").key(key).send().await;
    answer.is_rejected(503, "database-unavailable");
    assert_eq!(answer.header("retry-after"), Some("2"));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // Nothing of the database's own words.
    let text = answer.text().to_lowercase();
    assert!(!["connection", "refused", "socket", "sql"].iter().any(|word| text.contains(word)), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_is_503_in_bounded_time_and_works_again_after_its_restart() {
    let server = Server::start().unwrap();
    let (pool, service) = start(&server).await;
    assert_eq!(service.post("/").key("before").send().await.status, 201);
    server.stop().unwrap();
    // With a connection in the pool that does not know yet, and without one.
    for key in ["before", "k", "k"] {
        is_unavailable(&service, key).await;
    }
    let error = Sweeper::new(pool.clone()).sweep_once().await.unwrap_err();
    assert!(error.to_string().contains("sweeping"), "{error}");
    server.restart().unwrap();
    let replayed = service.post("/").key("before").send().await;
    assert!(replayed.is_replay(), "{replayed:?}");
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    assert_eq!(effects(&pool, "paid").await, 2);
    assert_eq!(states(&pool).await, ["completed", "completed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_503_in_bounded_time_and_works_again_after_its_restart() {
    // Durable: a record is still there after the crash.
    let server = Server::builder().durable().start().unwrap();
    let (pool, service) = start(&server).await;
    assert_eq!(service.post("/").key("before").send().await.status, 201);
    server.kill().unwrap();
    for key in ["before", "k"] {
        is_unavailable(&service, key).await;
    }
    server.restart().unwrap();
    let replayed = service.post("/").key("before").send().await;
    assert!(replayed.is_replay(), "{replayed:?}");
    assert_eq!(service.post("/").key("k").send().await.status, 201);
    assert_eq!(effects(&pool, "paid").await, 2);
}
