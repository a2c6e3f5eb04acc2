//! The answer to a claim's BEGIN comes when nobody waits for it any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::routing::post;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt as _;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx};

use crate::network::{Fate, Network};
use crate::site::{admin, migrate, server};

/// The driver does not know then that the server is in a transaction: who writes through that
/// connection next would write for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_begin_was_answered_late_is_not_given_back() {
    let server = server();
    let admin = admin(server.options("postgres"));
    migrate(&admin).await;
    let stalled = AtomicBool::new(false);
    let network = Network::deciding(server.port(), move |frame| {
        let begins = frame.kind == b'Q' && frame.bytes[5..].starts_with(b"begin isolation");
        if begins && !stalled.swap(true, Ordering::SeqCst) { Fate::Stalled(LATE) } else { Fate::Forward }
    })
    .await;
    let options = server.tcp_options("postgres").port(network.port);
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let layer = IdempotencyLayer::new(pool.clone(), Tenant::single()).operation("test");
    let router = Router::new().route("/", post(async |_: Tx| "done").route_layer(layer));

    let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    assert_eq!(status, 503);
    assert!(String::from_utf8_lossy(&body).contains("database-unavailable"), "{body:?}");

    sqlx::query("insert into effect (intent) values (1)").execute(&pool).await.unwrap();
    let visible: i64 = sqlx::query_scalar("select count(*) from effect").fetch_one(&admin).await.unwrap();
    assert_eq!(visible, 1, "the connection is poisoned");
}

/// Longer than a claim is waited for.
const LATE: Duration = Duration::from_secs(12);
