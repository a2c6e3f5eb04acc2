//! The service under test: the other process, and this one's hold on it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::FutureExt as _;
use serde::Deserialize;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{Connection as _, PgPool};
use tower_idempotency::{IdempotencyLayer, Isolation, Settlement, Tenant, Tx};
use uuid::Uuid;

use crate::itself::{Itself, end_with_parent};

/// What the other process is told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) pool: u32,
    pub(crate) unnamed: bool,
    pub(crate) serializable: bool,
    /// Its clock is that much ahead, by `faketime`.
    pub(crate) ahead: Option<&'static str>,
}

/// A process that serves, on a socket that outlives it.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    settings: Settings,
    process: Itself,
}

impl Service {
    pub(crate) fn start(settings: Settings, log: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = Self { address, listener, settings, process: Itself::new("service", log) };
        service.restart();
        service
    }

    /// At once, and for good: SIGKILL.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// The socket is the same; who has connected meanwhile has waited.
    pub(crate) fn restart(&self) {
        let program = std::env::current_exe().unwrap();
        let mut command = match self.settings.ahead {
            None => Command::new(program),
            Some(ahead) => {
                let mut command = Command::new("faketime");
                command.args(["-f", ahead]).arg(program);
                command
            }
        };
        let Settings { port, user, password, pool, unnamed, serializable, .. } = &self.settings;
        let words = format!("{port} {user} {password} {pool} {unnamed} {serializable}");
        let socket = Stdio::from(OwnedFd::from(self.listener.try_clone().unwrap()));
        self.process.start(command.env("DRILL_SERVICE", words).stdin(socket));
    }
}

/// The body of the other process.
pub(crate) fn run() {
    let Ok(settings) = std::env::var("DRILL_SERVICE") else { return };
    let words: Vec<&str> = settings.split(' ').collect();
    let [port, user, password, connections, unnamed, serializable] = words[..] else {
        panic!("DRILL_SERVICE={settings}")
    };
    end_with_parent();
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port.parse().unwrap())
        .username(user)
        .password(password)
        .database("postgres")
        .ssl_mode(PgSslMode::Disable);
    let unnamed = unnamed == "true";
    let options = if unnamed { options.statement_cache_capacity(0) } else { options };
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let pool =
            PgPoolOptions::new().max_connections(connections.parse().unwrap()).connect_lazy_with(options);
        let mut layer = IdempotencyLayer::new(pool.clone(), Tenant::single())
            .operation("payments.create")
            .execution_timeout(EXECUTION_TIMEOUT)
            .acquire_timeout(Duration::from_secs(2));
        if unnamed {
            layer = layer.unnamed_statements();
        }
        if serializable == "true" {
            layer = layer.isolation(Isolation::Serializable);
        }
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, router(pool, &layer)).await.unwrap();
    });
}

fn router(pool: PgPool, layer: &IdempotencyLayer) -> Router {
    let (drained, idle) = (layer.clone(), pool);
    let drain = async move || {
        drained.drain().await;
        let (size, idle) = (idle.size(), idle.num_idle());
        format!("{} of {size} connections are idle", idle)
    };
    Router::new().route("/", post(pay).route_layer(layer.clone())).route("/idle", get(drain))
}

/// What a client wants.
#[derive(Deserialize)]
struct Payment {
    intent: i64,
    refused: bool,
}

/// One effect, or a refusal; on the way, whatever `x-fault` asks of this attempt.
async fn pay(headers: HeaderMap, mut tx: Tx, Json(payment): Json<Payment>) -> Response {
    let fault = headers.get("x-fault").map_or("", |fault| fault.to_str().unwrap());
    let Payment { intent, refused } = payment;
    match run_once(&mut tx, intent, fault).await {
        Ok(_) if refused => (StatusCode::PAYMENT_REQUIRED, Uuid::new_v4().to_string()).into_response(),
        Ok(id) => {
            match fault {
                "panic" => panic!("as asked"),
                "fail" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                "unavailable" => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
                "hold" => {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        drop(tx);
                    });
                }
                _ => {}
            }
            let location = format!("/payments/{id}");
            (StatusCode::CREATED, [("location", location)], format!("{id} {}", Uuid::new_v4()))
                .into_response()
        }
        Err(error) if Settlement::is_rerun(&error) => {
            (StatusCode::SERVICE_UNAVAILABLE, Settlement::Rerun, ()).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn run_once(tx: &mut Tx, intent: i64, fault: &str) -> Result<i64, sqlx::Error> {
    let id = sqlx::query_scalar("insert into effect (intent) values ($1) returning id")
        .bind(intent)
        .persistent(false)
        .fetch_one(&mut **tx)
        .await?;
    match fault {
        "sleep" => tokio::time::sleep(Duration::from_millis(100)).await,
        "long" => tokio::time::sleep(EXECUTION_TIMEOUT * 2).await,
        "statement" => {
            sqlx::query("select pg_sleep(0.1)").persistent(false).execute(&mut **tx).await?;
        }
        // A handler that does not look at its errors.
        "constraint" => {
            let _ = sqlx::raw_sql("insert into effect (id, intent) overriding system value select id, 0 from effect limit 1; select 1/0")
                .execute(&mut **tx)
                .await;
        }
        "deferred" => {
            sqlx::raw_sql("insert into child (parent) values (1)").execute(&mut **tx).await?;
        }
        "savepoint" => std::mem::forget(tx.begin().await?),
        "nested" => {
            // Given up midway.
            assert!(tx.begin().now_or_never().is_none());
            sqlx::query("insert into effect (intent) values ($1)").bind(intent).execute(&mut **tx).await?;
        }
        _ => {}
    }
    Ok(id)
}

/// What `x-fault` can ask for.
pub(crate) const HANDLER_FAULTS: [&str; 11] = [
    "panic",
    "fail",
    "unavailable",
    "hold",
    "sleep",
    "long",
    "statement",
    "constraint",
    "deferred",
    "savepoint",
    "nested",
];

pub(crate) const EXECUTION_TIMEOUT: Duration = Duration::from_secs(3);
