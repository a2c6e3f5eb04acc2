//! What a replay costs.
//!
//! From the database: against a handler that reads one row by its primary key and answers with it,
//! which is the least that any record in the database can cost. And against the floor, a handler with
//! the layer's statement written into it, which reads all of a record and lets the database judge
//! whether it still counts. From the process, with
//! `.replay_cache(..)`: against a handler that answers with the same bytes and looks at nothing.
//! All parse the same JSON body, as a handler would.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use harness::bank::{self, NewPayment, Payment};
use harness::{Aim, Clients, Plan, Report, interleaved, pool};
use http_body_util::Full;
use sqlx::{PgPool, Row as _};
use tower_idempotency::{IdempotencyLayer, Tenant, Tx, migrate};

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let mut report = Report::new("replay", "A replay: the layer against one row by primary key", plan);
    let server = harness::durable(&[]).await;
    let setup = pool(&server, "postgres", 20).await;
    report.server(&setup).await;
    report.setting("pool", "20 connections for each side, sqlx's defaults");
    migrate(&setup).await.expect("migrations");
    bank::open(&setup).await;
    sqlx::raw_sql("create table answer (id text primary key, status int2, body bytea)")
        .execute(&setup)
        .await
        .expect("a table");

    let layer = layer(pool(&server, "postgres", 20).await);
    let read = harness::serve(layered(layer.clone())).await;
    let cached = harness::serve(layered(layer.replay_cache(16 << 20))).await;
    let select = harness::serve(select(pool(&server, "postgres", 20).await)).await;
    let statement = harness::serve(statement(pool(&server, "postgres", 20).await)).await;
    let bytes = harness::serve(bytes()).await;
    first_time(&setup, read).await;
    for clients in [1, 16] {
        let mut sides = Vec::new();
        for address in [read, select, statement, cached, bytes] {
            let make = if address == select { lookup } else { retry };
            sides.push(Clients::connect(address, clients).await.side(StatusCode::CREATED, make));
        }
        let sides = sides.try_into().unwrap_or_else(|_| panic!("BUG: five sides"));
        let [read, select, statement, cached, bytes] = interleaved(plan, &server, sides).await;
        let name = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
        report.rounds(&name, ("replay", &read), ("select", &select), Aim::AtLeast(0.85));
        let mut step = |what: &str, side, base| report.step(&format!("{name}, {what}"), side, base);
        step("the layer itself", ("replay", &read), ("statement", &statement));
        step("its statement", ("statement", &statement), ("select", &select));
        let name = format!("{name}, cached");
        report.rounds(&name, ("replay", &cached), ("bytes", &bytes), Aim::AtLeast(0.7));
    }
    report.finish();
}

/// Executes each key once, and copies the answers to the other side's table.
async fn first_time(pool: &PgPool, layer: SocketAddr) {
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

fn layer(pool: PgPool) -> IdempotencyLayer {
    IdempotencyLayer::new(pool, Tenant::single()).operation(OPERATION)
}

fn layered(layer: IdempotencyLayer) -> Router {
    async fn create(mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        bank::answer(bank::pay(&mut tx, &new).await)
    }
    Router::new().route("/payments", post(create).route_layer(layer))
}

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

/// The layer's statement, and the response it has stored.
fn statement(pool: PgPool) -> Router {
    async fn read(headers: HeaderMap, State(pool): State<PgPool>, Json(_new): Json<NewPayment>) -> Response {
        let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
        let row = sqlx::query(include_str!("../src/sql/read.sql")).bind("").bind(OPERATION).bind(key);
        let row = match row.fetch_one(&pool).await {
            Ok(row) => row,
            Err(error) => return bank::failed(&error),
        };
        assert_eq!(row.get::<&str, _>("verdict"), "completed");
        let status = StatusCode::from_u16(row.get::<i16, _>("status").unsigned_abs()).expect("a status");
        (status, [(CONTENT_TYPE, "application/json")], row.get::<Vec<u8>, _>("body")).into_response()
    }
    Router::new().route("/payments", post(read)).with_state(pool)
}

fn bytes() -> Router {
    async fn answer(Json(new): Json<NewPayment>) -> Response {
        let id = uuid::Uuid::nil();
        let NewPayment { account, amount, reference, .. } = new;
        let payment = Payment { id, account, amount, balance: 1_000_000_000, reference };
        (StatusCode::CREATED, Json(payment)).into_response()
    }
    Router::new().route("/payments", post(answer))
}

fn retry(_client: usize) -> Request<Full<Bytes>> {
    request(any())
}

fn lookup(_client: usize) -> Request<Full<Bytes>> {
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

const OPERATION: &str = "payments.create";

const KEYS: u16 = 1000;
