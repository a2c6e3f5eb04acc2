//! A network that swallows packets: nothing of ours waits without a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::oneshot;
use tower_idempotency::{Sweeper, Tx};

use crate::support::{Fate, Proxy, database, eventually, layer, serve_behind};

#[tokio::test]
async fn a_tx_whose_begin_is_swallowed_is_a_503_in_bounded_time() {
    let db = database().await;
    let proxy =
        Proxy::to(
            &db,
            |message| {
                if message.contains("begin isolation") { Fate::Swallowed } else { Fate::Forward }
            },
        );
    let pool = proxy.pool(1).await;
    let handler = async |_: Tx| StatusCode::CREATED;
    let service = serve_behind(layer(&pool).optional(), handler).await;
    let answer = tokio::time::timeout(Duration::from_secs(20), service.post("/").send()).await;
    answer.expect("it hangs").is_rejected(503, "database-unavailable");
}

#[tokio::test]
async fn a_stop_is_heard_though_a_sweep_is_swallowed() {
    let db = database().await;
    let swallowed = Arc::new(AtomicBool::new(false));
    let proxy = Proxy::to(&db, {
        let swallowed = swallowed.clone();
        move |message| {
            if message.contains("begin isolation") {
                swallowed.store(true, Ordering::SeqCst);
                return Fate::Swallowed;
            }
            Fate::Forward
        }
    });
    let sweeper = Sweeper::new(proxy.pool(1).await);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move { sweeper.run(async { drop(stopped.await) }).await });
    eventually(std::panic::Location::caller(), async || {
        if swallowed.load(Ordering::SeqCst) { Ok(()) } else { Err("no sweep".to_owned()) }
    })
    .await;
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), running).await.expect("it hangs").unwrap();
}
