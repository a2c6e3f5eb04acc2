//! A payment service whose POST is safe to retry.
//!
//! `cargo run --example payments` starts a database, serves, takes a tour against itself over HTTP,
//! and then keeps serving, with curl lines to try. Read `service.rs` first: it is what you would
//! write. This file is what stands around it, from migration to shutdown; `tour.rs` is the client.

mod bank;
mod client;
mod screen;
mod service;
mod tour;

use std::env;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower_idempotency::{IdempotencyLayer, Sweeper, Tenant};

use bank::Bank;
use client::Client;
use service::Account;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            screen::line(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("payments: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments).await {
        Ok(status) => status,
        Err(error) => {
            eprintln!("payments: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<ExitCode, BoxError> {
    // Before the database: a port that is taken is told at once.
    let listener = listen(arguments.port()).await?;
    let address = listener.local_addr()?;

    // A database of its own, gone when this ends. Yours would be `PgPool::connect(..)`.
    screen::line(match env::var_os("DATABASE_URL").is_some_and(|url| !url.is_empty()) {
        true => "Database: one of its own on the server that DATABASE_URL names.",
        false => "Database: a private PostgreSQL, started now and gone when this ends.",
    });
    devpg::try_server()?;
    let database = devpg::empty_database().await;
    let pool = PgPool::clone(&database);

    // At every start, by every replica: they wait for each other.
    tower_idempotency::migrate(&pool).await?;
    sqlx::raw_sql(service::SCHEMA).execute(&pool).await?;

    let bank = Arc::new(Bank::default());
    let tenant = Tenant::extension(|account: &Account| account.0);
    let idempotent = IdempotencyLayer::new(pool.clone(), tenant);
    idempotent.check().await?;
    let router = service::router(&pool, &idempotent, &bank);

    // What the user wants, and what we do about it: the tour ends before the server does.
    let (interrupt, stop) = (watch::Sender::new(false), watch::Sender::new(false));
    heed_signals(interrupt.clone())?;
    let server = axum::serve(listener, router).with_graceful_shutdown(is_set(&stop));
    let server = tokio::spawn(server.into_future());
    let (sweeper, swept) = (Sweeper::new(pool.clone()), is_set(&stop));
    let sweeper = tokio::spawn(async move { sweeper.run(swept).await });

    let client = Client::new(address);
    let status = tokio::select! {
        () = is_set(&interrupt) => ExitCode::from(INTERRUPTED),
        tour = tokio::time::timeout(TOUR_TIMEOUT, tour::take(&client, &bank)) => {
            let as_promised = tour.map_err(|_| "the tour did not end in time")??;
            if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    };
    bank.open();
    if !arguments.once && !*interrupt.borrow() {
        screen::line(&curl_lines(address.port()));
        is_set(&interrupt).await;
    }

    // The end, in this order: take no more requests and answer those under way, though not for ever;
    // finish those whose clients have hung up; close what they used.
    stop.send_replace(true);
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, server).await {
        Ok(served) => served??,
        Err(_) => screen::line("A client has not finished its request; it is left behind."),
    }
    idempotent.drain().await;
    sweeper.await?;
    pool.close().await;
    Ok(status)
}

async fn listen(port: u16) -> Result<TcpListener, BoxError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        let hint = "choose another port with `--port N`, or any free one with `--port 0`";
        format!("cannot listen on 127.0.0.1:{port}: {error}; {hint}").into()
    })
}

/// Ctrl-C and SIGTERM begin the end; a second one is the end.
fn heed_signals(interrupt: watch::Sender<bool>) -> Result<(), BoxError> {
    let (mut ctrl_c, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = ctrl_c.recv() => {}
                _ = terminate.recv() => {}
            }
            if interrupt.send_replace(true) {
                std::process::exit(INTERRUPTED.into());
            }
            screen::line("\nStopping: requests under way are finished. Ctrl-C again ends at once.");
        }
    });
    Ok(())
}

fn is_set(flag: &watch::Sender<bool>) -> impl Future<Output = ()> + Send + 'static {
    let mut flag = flag.subscribe();
    async move {
        // An error means that nobody can set it any more, which is the end, too.
        let _ = flag.wait_for(|set| *set).await;
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn curl_lines(port: u16) -> String {
    format!(
        r#"Serving on http://127.0.0.1:{port} until Ctrl-C. Send this twice, then with another amount, then without
the key; then as `bob`:

  curl -i http://127.0.0.1:{port}/payments \
    -H 'Authorization: Bearer alice' -H 'Idempotency-Key: mine-1' \
    -H 'Content-Type: application/json' \
    -d '{{"amount":1250,"currency":"EUR","reference":"my order"}}'

A reference that starts with `decline` is a card that is declined. What was paid, and a refund:

  curl http://127.0.0.1:{port}/payments -H 'Authorization: Bearer alice'

  curl -i http://127.0.0.1:{port}/payments/1/refunds \
    -H 'Authorization: Bearer alice' -H 'Idempotency-Key: mine-2' \
    -H 'Content-Type: application/json' -d '{{"amount":250}}'
"#
    )
}

#[derive(Default)]
struct Arguments {
    once: bool,
    port: Option<u16>,
}

impl Arguments {
    /// `None` asks for the usage.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut parsed = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "-h" | "--help" => return Ok(None),
                "--once" => parsed.once = true,
                "--port" => parsed.port = Some(port(&arguments.next().unwrap_or_default())?),
                other => match other.strip_prefix("--port=") {
                    Some(number) => parsed.port = Some(port(number)?),
                    None => return Err(format!("unknown argument `{other}`")),
                },
            }
        }
        Ok(Some(parsed))
    }

    /// Once, any free port will do: nobody needs to know it.
    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.once { 0 } else { 3000 })
    }
}

fn port(number: &str) -> Result<u16, String> {
    number.parse().map_err(|_| format!("--port takes a number from 0 to 65535, not `{number}`"))
}

const USAGE: &str = "\
Usage: cargo run --example payments -- [--once] [--port N]

  --once     end after the tour, with status 1 if anything was not as promised
  --port N   listen on 127.0.0.1:N; 3000 by default, with --once any free port

It starts a PostgreSQL of its own, or uses the server that DATABASE_URL names.";

/// It takes a second or two; on a machine in distress it must still end.
const TOUR_TIMEOUT: Duration = Duration::from_secs(120);

/// For a client that has sent half a request and nothing since.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a shell reports of a program that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;
