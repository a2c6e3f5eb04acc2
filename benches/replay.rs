//! What a replay costs.
//!
//! Against a handler that reads one row by its primary key and answers with it, which is the least
//! that any record in the database can cost.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devpg::Server;
use harness::bank::{self, NewPayment};
use harness::{Aim, Clients, Plan, Report, Round, interleaved};
use http_body_util::Full;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx, migrate};

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let mut report = Report::new("replay", "A replay: the layer against one row by primary key", plan);
    let server = harness::durable(&[]).await;
    let setup = pool(&server).await;
    report.server(&setup).await;
    report.setting("pool", "20 connections for each side, sqlx's defaults");
    migrate(&setup).await.expect("migrations");
    bank::open(&setup).await;
    sqlx::raw_sql("create table answer (id text primary key, status int2, body bytea)")
        .execute(&setup)
        .await
        .expect("a table");

    let layer = harness::serve(layered(pool(&server).await)).await;
    let select = harness::serve(select(pool(&server).await)).await;
    first_time(&setup, layer).await;
    for clients in [1, 16] {
        let layer = Clients::connect(layer, clients).await.side(StatusCode::CREATED, retry);
        let select = Clients::connect(select, clients).await.side(StatusCode::CREATED, read);
        let [layer, select] = interleaved(plan, &server, [layer, select]).await;
        let name = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
        let mut compare = |what: &str, unit, value: fn(&Round) -> f64, aim| {
            let values = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
            let (layer, select) = (values(&layer), values(&select));
            report.ratio(format!("{name}: {what}"), unit, ("replay", &layer), ("select", &select), aim);
        };
        compare("throughput", "requests/s", Round::rate, Aim::AtLeast(0.85));
        compare("p50", "µs", Round::p50, Aim::None);
        compare("p99", "µs", Round::p99, Aim::None);
        compare("processor, service and clients", "µs", Round::own_cpu, Aim::None);
        compare("processor, database", "µs", Round::server_cpu, Aim::None);
    }
    report.finish();
}

/// Executes each key once, and copies the answers to the other side's table.
async fn first_time(pool: &PgPool, layer: std::net::SocketAddr) {
    let mut client = Clients::connect(layer, 1).await;
    for n in 0..KEYS {
        client.once(request(n), StatusCode::CREATED).await;
    }
    sqlx::raw_sql(
        "insert into answer select idempotency_key, status, body from idempotency.record;
         analyze answer; analyze idempotency.record",
    )
    .execute(pool)
    .await
    .expect("copies");
}

fn layered(pool: PgPool) -> Router {
    async fn create(mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        match bank::pay(&mut tx, &new).await {
            Ok(payment) => (StatusCode::CREATED, Json(payment)).into_response(),
            Err(error) => bank::failed(&error),
        }
    }
    let layer = IdempotencyLayer::new(pool, Tenant::single()).operation("payments.create");
    Router::new().route("/payments", post(create).route_layer(layer))
}

/// It parses the same body, since a handler would.
fn select(pool: PgPool) -> Router {
    async fn read(
        Path(id): Path<String>,
        State(pool): State<PgPool>,
        Json(_new): Json<NewPayment>,
    ) -> Response {
        let row: Result<(i16, Vec<u8>), _> =
            sqlx::query_as("select status, body from answer where id = $1").bind(id).fetch_one(&pool).await;
        match row {
            Ok((status, body)) => {
                let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
                (status.expect("a status"), [(CONTENT_TYPE, "application/json")], body).into_response()
            }
            Err(error) => bank::failed(&error),
        }
    }
    Router::new().route("/answers/{id}", post(read)).with_state(pool)
}

fn retry(_client: usize) -> Request<Full<Bytes>> {
    request(any())
}

fn read(_client: usize) -> Request<Full<Bytes>> {
    let n = any();
    harness::post(&format!("/answers/{}", key(n)), None, body(n))
}

fn request(n: u16) -> Request<Full<Bytes>> {
    harness::post("/payments", Some(&key(n)), body(n))
}

fn key(n: u16) -> String {
    format!("01890a5d-ac96-774b-bcce-b302099a{n:04x}")
}

fn body(n: u16) -> Vec<u8> {
    let account = i32::from(n) % 1000;
    NewPayment { account, reference: format!("invoice {n}"), ..NewPayment::random() }.to_json()
}

fn any() -> u16 {
    let random = uuid::Uuid::new_v4();
    u16::from_be_bytes([random.as_bytes()[0], random.as_bytes()[1]]) % KEYS
}

async fn pool(server: &Server) -> PgPool {
    let options = server.tcp_options("postgres");
    let pool = PgPoolOptions::new().max_connections(20).connect_with(options).await;
    pool.expect("the bench's own server")
}

const KEYS: u16 = 1000;
