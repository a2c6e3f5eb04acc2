//! A service that takes webhooks of GitHub, Stripe, and senders of Standard Webhooks.
//!
//! `cargo run --example webhooks -- --once` plays the senders over HTTP, with signatures as real as
//! theirs, and checks what comes of it. Without `--once` it takes deliveries of the real ones; `--help`
//! says how. Read `service.rs` first: it is what you would write, with the feature `webhook`.

mod senders;
mod service;
mod tour;

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use sqlx::PgPool;
use tokio::net::TcpListener;

use service::Secrets;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The tour's forgeries are meant to be refused; real ones are worth a line.
    let level = if arguments == ["--once"] { tracing::Level::ERROR } else { tracing::Level::INFO };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    let outcome = match arguments[..] {
        [] => serve().await,
        ["--once"] => once().await,
        _ => {
            println!("{USAGE}");
            return if arguments == ["--help"] { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("webhooks: {error}");
        ExitCode::FAILURE
    })
}

/// Takes deliveries of those senders whose secrets the environment has.
async fn serve() -> Result<ExitCode, BoxError> {
    let secrets = Secrets::from_environment();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    let database = devpg::empty_database().await;
    let pool = PgPool::clone(&database);
    prepare(&pool).await?;
    let (router, layers) = service::router(&pool, secrets)?;
    println!("Serving on http://{} until Ctrl-C.", listener.local_addr()?);
    axum::serve(listener, router).with_graceful_shutdown(interrupt()).await?;
    for layer in layers {
        layer.drain().await;
    }
    pool.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Plays the senders, then ends.
async fn once() -> Result<ExitCode, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address: SocketAddr = listener.local_addr()?;
    let database = devpg::empty_database().await;
    let pool = PgPool::clone(&database);
    prepare(&pool).await?;
    let (router, _) = service::router(&pool, Secrets::for_the_tour())?;
    let server = tokio::spawn(axum::serve(listener, router).into_future());
    let as_promised = tour::take(address, &pool).await?;
    server.abort();
    pool.close().await;
    Ok(if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn prepare(pool: &PgPool) -> Result<(), BoxError> {
    tower_idempotency::migrate(pool).await?;
    sqlx::raw_sql(service::SCHEMA).execute(pool).await?;
    Ok(())
}

async fn interrupt() {
    // An error means that signals cannot be heard, so that only a kill ends it.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

const USAGE: &str = "\
Usage: cargo run --example webhooks -- [--once]

  --once   play the senders over HTTP and end, with status 1 if anything was not as promised

Without it: take real deliveries on 127.0.0.1:3000, of those whose secret is in the environment.

  GITHUB_WEBHOOK_SECRET      any text; then, with the gh-webhook extension of `gh`:
    gh webhook forward --repo OWNER/REPO --events push \\
      --url http://localhost:3000/webhooks/github --secret \"$GITHUB_WEBHOOK_SECRET\"

  STRIPE_WEBHOOK_SECRET      what `stripe listen --print-secret` prints; then:
    stripe listen --forward-to localhost:3000/webhooks/stripe
    stripe trigger customer.subscription.updated

  STANDARD_WEBHOOKS_SECRET   whsec_.. of any sender by the specification; for Svix, with its command
    svix listen http://localhost:3000/webhooks/standard
    and the secret of the endpoint that it makes";
