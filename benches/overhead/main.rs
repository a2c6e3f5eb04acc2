//! What the layer costs a request with a new key.
//!
//! The same handler, once behind the layer and once with a transaction of its own and no idempotency:
//! it locks an account, inserts a payment, and changes the balance.
//!
//! And the floor, in three steps: the layer against the same handler with the layer's statements written
//! into it, which is what the layer itself takes; that against the handler with two statements more that
//! do nothing, which is what the record's insertion and update take in the database; and that against
//! the handler as it was, which is what two round trips take.

mod floor;

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Json;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use devpg::Server;
use harness::bank::{self, NewPayment};
use harness::{Aim, Clients, Network, Plan, Report, interleaved};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx, migrate};
use uuid::Uuid;

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let mut report = Report::new("overhead", "A new key: the layer against no idempotency", plan);
    let server = harness::durable(&[]).await;
    let near = pool(&server, None).await;
    report.server(&near).await;
    report.setting("pool", "20 connections for each side, sqlx's defaults");
    migrate(&near).await.expect("migrations");
    bank::open(&near).await;

    for (clients, aim) in [(1, Aim::AtLeast(0.90)), (16, Aim::AtLeast(0.80)), (64, Aim::None)] {
        compare(&mut report, plan, &server, None, clients, aim).await;
    }
    let network = Network::to(server.port(), Duration::from_micros(500));
    let far = pool(&server, Some(&network)).await;
    report.fact("a round trip of the slow network", "ms", round_trip(&far).await, Aim::None);
    for clients in [1, 16] {
        compare(&mut report, plan, &server, Some(&network), clients, Aim::None).await;
    }
    let more = round_trips(&server, layered).await - round_trips(&server, bank::bare).await;
    report.fact("round trips more than without the layer", "", more, Aim::AtMost(2.0));
    report.finish();
}

async fn compare(
    report: &mut Report,
    plan: Plan,
    server: &Server,
    network: Option<&Network>,
    clients: usize,
    aim: Aim,
) {
    let side = async |app: fn(PgPool) -> Router| {
        let address = harness::serve(app(pool(server, network).await)).await;
        Clients::connect(address, clients).await.side(StatusCode::CREATED, new_payment)
    };
    let sides = [
        side(layered).await,
        side(bank::bare).await,
        side(floor::statements).await,
        side(floor::round_trips).await,
    ];
    let [layer, bare, statements, round_trips] = interleaved(plan, server, sides).await;

    let distance = if network.is_some() { ", 1 ms to the database" } else { "" };
    let name = format!("{clients} client{}{distance}", if clients == 1 { "" } else { "s" });
    report.rounds(&name, ("layer", &layer), ("bare", &bare), aim);
    let mut step = |what: &str, side, base| report.step(&format!("{name}, {what}"), side, base);
    step("the layer itself", ("layer", &layer), ("statements", &statements));
    step("its statements", ("statements", &statements), ("round trips", &round_trips));
    step("its round trips", ("round trips", &round_trips), ("bare", &bare));
}

fn layered(pool: PgPool) -> Router {
    async fn create(mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        bank::answer(bank::pay(&mut tx, &new).await)
    }
    let layer = IdempotencyLayer::new(pool, Tenant::single()).operation("payments.create");
    Router::new().route("/payments", post(create).route_layer(layer))
}

fn new_payment(_client: usize) -> axum::http::Request<http_body_util::Full<axum::body::Bytes>> {
    let key = Uuid::new_v4().to_string();
    harness::post("/payments", Some(&key), NewPayment::random().to_json())
}

async fn pool(server: &Server, network: Option<&Network>) -> PgPool {
    let mut options = server.tcp_options("postgres");
    if let Some(network) = network {
        options = options.port(network.port);
    }
    let pool = PgPoolOptions::new().max_connections(20).connect_with(options).await;
    pool.expect("the bench's own server")
}

/// Milliseconds, of a statement that does nothing.
async fn round_trip(pool: &PgPool) -> f64 {
    let mut connection = pool.acquire().await.expect("a connection");
    let began = Instant::now();
    for _ in 0..ENOUGH {
        sqlx::raw_sql("select").execute(&mut *connection).await.expect("an answer");
    }
    began.elapsed().as_secs_f64() * 1e3 / f64::from(ENOUGH)
}

/// How often the server answers a request, seen on the wire, once its statements are prepared.
async fn round_trips(server: &Server, app: fn(PgPool) -> Router) -> f64 {
    let network = Network::to(server.port(), Duration::ZERO);
    let pool = {
        let options = server.tcp_options("postgres").port(network.port);
        PgPoolOptions::new().max_connections(2).connect_with(options).await.expect("the bench's own server")
    };
    let mut clients = Clients::connect(harness::serve(app(pool)).await, 1).await;
    clients.run(WARM_UP, StatusCode::CREATED, new_payment).await;
    let before = network.round_trips();
    let round = clients.run(WARM_UP, StatusCode::CREATED, new_payment).await;
    ((network.round_trips() - before) as f64 / round.latencies.len() as f64).round()
}

const ENOUGH: u32 = 100;
const WARM_UP: Duration = Duration::from_millis(300);
