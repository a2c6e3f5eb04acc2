//! The database's server, and the service's.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use devpg::Server;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;

/// A server of its own that keeps what it has committed, on a disk: `fsync`, `synchronous_commit`
/// and `full_page_writes` are on.
pub async fn durable(settings: &[(&str, &str)]) -> Server {
    let mut builder = Server::builder().durable().tcp();
    // Checkpoints in the middle of a round would fall on one side.
    builder = builder.setting("max_wal_size", "8GB").setting("checkpoint_timeout", "1h");
    builder = builder.setting("shared_buffers", "512MB");
    for (name, value) in settings {
        builder = builder.setting(*name, value);
    }
    let started = tokio::task::spawn_blocking(|| builder.start()).await;
    started.expect("no panic").expect("a PostgreSQL server")
}

/// Connections to one of its databases, over TCP, with sqlx's defaults.
pub async fn pool(server: &Server, database: &str, connections: u32) -> PgPool {
    let options = server.tcp_options(database);
    let pool = PgPoolOptions::new().max_connections(connections).connect_with(options).await;
    pool.expect("the bench's own server")
}

/// Serves on a free port of loopback until the process ends.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        stream.set_nodelay(true).expect("a socket option");
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}
