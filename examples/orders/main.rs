//! From an idempotent request to an effect in another service, through outbox, broker and inbox.
//!
//! `cargo run --example orders -- --once` runs it on real parts: two databases, and NATS JetStream
//! where `nats-server` is installed; else plain HTTP between the two services. Its exit status is 1 if
//! anything was not as promised. `shop.rs` and `warehouse.rs` are what you would write, with the
//! features `outbox-nats` or `outbox-http`.

mod nats;
mod over_http;
mod shop;
mod warehouse;

use std::env;
use std::future::IntoFuture as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tower_idempotency::outbox::Relay;

use nats::Nats;
use warehouse::Warehouse;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    // The relay warns of the acknowledgement that the tour loses.
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments != ["--once"] {
        println!("Usage: cargo run --example orders -- --once");
        return if arguments == ["--help"] { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    match tokio::time::timeout(TOUR_TIMEOUT, once()).await {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("orders: NOT as promised: the tour did not end in time");
            ExitCode::FAILURE
        }
    }
}

async fn once() -> Result<bool, BoxError> {
    // Each service has its own database, as each would have.
    let (shop_database, warehouse_database) = (devpg::empty_database().await, devpg::empty_database().await);
    let (shop, stock) = (PgPool::clone(&shop_database), PgPool::clone(&warehouse_database));
    for (pool, schema) in [(&shop, shop::SCHEMA), (&stock, warehouse::SCHEMA)] {
        tower_idempotency::migrate(pool).await?;
        sqlx::raw_sql(schema).execute(pool).await?;
    }
    let warehouse = Warehouse::new(stock.clone());
    let (told, mut deliveries) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(false);

    // The broker, the consumer behind it, and the relay before it.
    let nats = Nats::start().await?;
    let (relay, _receiver) = match &nats {
        Some(nats) => {
            println!("Broker: NATS JetStream, a nats-server started now and gone when this ends.");
            tokio::spawn(nats::consume(nats.messages().await?, warehouse, told));
            (Relay::new(shop.clone(), nats.publisher().await?), None)
        }
        None => {
            println!(
                "Broker: none, nats-server is not installed. The shop posts its events to the warehouse"
            );
            println!("        over HTTP, signed, instead.");
            let (address, receiver) = serve(over_http::router(&warehouse)?).await?;
            (Relay::new(shop.clone(), over_http::publisher(address, told)?), Some(receiver))
        }
    };
    let (address, _shop) = serve(shop::router(&shop)).await?;
    let mut stopped = stop.subscribe();
    let relay = tokio::spawn(async move {
        relay
            .run(async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            })
            .await;
    });

    println!("\nA customer orders three lamps, and orders again, since the answer may have been lost.");
    let (first, second) = (order(address).await?, order(address).await?);
    println!("  > POST /orders   < {} {}", first.0, text(&first.1));
    println!("  > the same       < {} {}", second.0, text(&second.1));

    println!("\nThe warehouse gets the event, and its acknowledgement is lost the first time.");
    let mut count = 0;
    while count < DELIVERIES {
        let Some(delivery) = deliveries.recv().await else { break };
        println!("  {delivery}");
        count += 1;
    }
    // The relay finishes what is in hand, so that its last acknowledgement counts.
    tokio::time::timeout(DRAIN_TIMEOUT, until_empty(&shop)).await.unwrap_or(Ok(()))?;
    stop.send_replace(true);
    relay.await?;

    println!("\nWhat is in the databases");
    let orders = count_of(&shop, "select count(*) from orders").await?;
    let waiting = count_of(&shop, "select count(*) from idempotency.outbox").await?;
    let reservations = count_of(&stock, "select count(*) from reservation").await?;
    let lamps = count_of(&stock, "select quantity from stock where item = 'lamp'").await?;
    let checks = [
        ("one order, and one answer", orders == 1 && first == second && first.0 == StatusCode::CREATED),
        ("the event came twice", count == DELIVERIES),
        ("stock was reserved once: 7 of 10 lamps are left", reservations == 1 && lamps == 7),
        ("no event waits", waiting == 0),
    ];
    for (what, is_so) in checks {
        println!("  {}: {what}", if is_so { "ok" } else { "NOT AS PROMISED" });
    }
    let as_promised = checks.iter().all(|(_, is_so)| *is_so);
    println!("\n{}", if as_promised { "All as promised." } else { "NOT as promised." });
    Ok(as_promised)
}

/// Stops when the handle is dropped with its runtime.
async fn serve(router: axum::Router) -> Result<(SocketAddr, tokio::task::JoinHandle<()>), BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let server = axum::serve(listener, router).into_future();
    let task = tokio::spawn(async move {
        if let Err(error) = server.await {
            eprintln!("orders: a server has ended: {error}");
        }
    });
    Ok((address, task))
}

/// The same request each time: one key, one body.
async fn order(address: SocketAddr) -> Result<(StatusCode, Bytes), BoxError> {
    let request = Request::post(format!("http://{address}/orders"))
        .header("content-type", "application/json")
        .header("idempotency-key", "order-of-three-lamps")
        .body(Body::from(r#"{"item":"lamp","quantity":3}"#))?;
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build_http();
    let (head, body) = client.request(request).await?.into_parts();
    Ok((head.status, to_bytes(Body::new(body), 1 << 20).await?))
}

async fn until_empty(shop: &PgPool) -> Result<(), sqlx::Error> {
    while count_of(shop, "select count(*) from idempotency.outbox").await? > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn count_of(pool: &PgPool, statement: &'static str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(statement).fetch_one(pool).await
}

fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// The first, and the one after the lost acknowledgement.
const DELIVERIES: usize = 2;

/// It takes a few seconds; on a machine in distress it must still end.
const TOUR_TIMEOUT: Duration = Duration::from_secs(120);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
