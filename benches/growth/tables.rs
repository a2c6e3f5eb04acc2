//! Databases of one server, each with a table of records of its own size.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devpg::Server;
use harness::{Clients, bank};
use http_body_util::Full;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tower_idempotency::{IdempotencyLayer, Retention, Tenant, Tx, migrate};

pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) pool: PgPool,
    pub(crate) rows: u64,
}

impl Table {
    /// A database with so many records that are there to stay.
    pub(crate) async fn create(server: &Server, rows: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("growth_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut admin =
            PgConnection::connect_with(&server.tcp_options("postgres")).await.expect("the server");
        let create = AssertSqlSafe(format!("create database {name}"));
        sqlx::raw_sql(create).execute(&mut admin).await.expect("a database");
        let pool = harness::pool(server, &name, 20).await;
        migrate(&pool).await.expect("migrations");
        sqlx::raw_sql("create table note (text text not null)").execute(&pool).await.expect("a table");
        let table = Self { name, pool, rows };
        // The one that all others are copies of.
        let mut client = Clients::connect(table.serve().await, 1).await;
        let first = client.once(request(&key(0, 1)), StatusCode::CREATED).await;
        assert_eq!(first.len(), BODY);
        let mut filled = 1;
        while filled < rows {
            let next = rows.min(filled + PIECE);
            // `key`, in SQL.
            let key = format!(
                "lpad(to_hex(n * {}), 8, '0') || '-ac96-774b-bcce-' || lpad(to_hex(n), 12, '0')",
                (1_u64 << 32) / rows
            );
            copy(&table.pool, &key, (filled, next - 1), "now() + interval '45 days'").await;
            filled = next;
            if rows > PIECE {
                eprintln!("{filled} of {rows} records");
            }
        }
        tidy(&table.pool).await;
        table
    }

    /// A service whose handler makes a row, behind the layer.
    pub(crate) async fn serve(&self) -> SocketAddr {
        harness::serve(router(&self.pool)).await
    }
}

/// That service, as a process has it that has just started: its layer knows of no key.
pub(crate) fn router(pool: &PgPool) -> Router {
    async fn create(mut tx: Tx, _body: Bytes) -> Response {
        let noted = sqlx::query("insert into note values ('a row that nobody else wants')");
        match noted.execute(&mut *tx).await {
            Ok(_) => (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], answer()).into_response(),
            Err(error) => bank::failed(&error),
        }
    }
    let layer = IdempotencyLayer::new(pool.clone(), Tenant::single());
    let layer = layer.operation(OPERATION).retention(Retention::days(45));
    Router::new().route("/payments", post(create).route_layer(layer))
}

/// The same request under any key: what it asks for is not what is measured.
pub(crate) fn request(key: &str) -> Request<Full<Bytes>> {
    harness::post("/payments", Some(key), r#"{"account":512,"amount":1250,"reference":"invoice 4a1c1d6c"}"#)
}

fn answer() -> String {
    let answer = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","text":""}"#;
    answer.replace(r#""""#, &format!("\"{}\"", "x".repeat(BODY - answer.len())))
}

/// The key of the record of this number. In the index they are evenly spread, and in their order.
pub(crate) fn key(number: u64, rows: u64) -> String {
    format!("{:08x}-ac96-774b-bcce-{number:012x}", number * ((1 << 32) / rows.max(1)))
}

/// Records that have expired, under random keys.
pub(crate) async fn expired(pool: &PgPool, count: u64) {
    copy(pool, "gen_random_uuid()::text", (1, count), "now() - interval '1 hour'").await;
}

/// Records that have expired and are still there.
pub(crate) async fn left(pool: &PgPool) -> u64 {
    let count = "select count(*) from idempotency.record where expires_at <= now()";
    sqlx::query_scalar::<_, i64>(count).fetch_one(pool).await.expect("a count") as u64
}

async fn copy(pool: &PgPool, key: &str, numbers: (u64, u64), expires_at: &str) {
    let (first, last) = numbers;
    let copy = format!(
        "insert into idempotency.record
           (tenant_id, operation, idempotency_key, claim_id, fingerprint, state, status, headers, body, expires_at)
         select r.tenant_id, r.operation, {key}, gen_random_uuid(), r.fingerprint, r.state, r.status, r.headers,
           r.body, {expires_at}
         from (select * from idempotency.record where idempotency_key = $1) r,
           generate_series({first}::bigint, {last}::bigint) n"
    );
    let copied = sqlx::query(AssertSqlSafe(copy)).bind(self::key(0, 1)).execute(pool).await;
    copied.expect("records");
}

/// What filling has left to do is done before anything is measured.
pub(crate) async fn tidy(pool: &PgPool) {
    for statement in ["vacuum (analyze) idempotency.record", "checkpoint"] {
        sqlx::raw_sql(statement).execute(pool).await.expect("a tidy table");
    }
}

/// Sessions that wait for a lock, other than for the right to make a file longer.
pub(crate) async fn waiting(pool: &PgPool) -> u64 {
    let count: i64 = sqlx::query_scalar(
        "select (
           select count(*) from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and wait_event <> 'extend'
         ) + (
           select count(*) from pg_locks where not granted and locktype <> 'extend'
         )",
    )
    .fetch_one(pool)
    .await
    .expect("a count");
    count as u64
}

pub(crate) struct After {
    pub(crate) rows: f64,
    pub(crate) hot: f64,
    pub(crate) dead: f64,
    pub(crate) table: f64,
    pub(crate) indexes: f64,
    pub(crate) vacuumed: f64,
}

/// What statistics say of the table. Those who have worked on it must be gone, as they report late.
pub(crate) async fn after(options: &PgConnectOptions) -> After {
    let mut connection = PgConnection::connect_with(options).await.expect("the server");
    let (rows, updates, hot, dead, vacuumed, table, indexes): (i64, i64, i64, i64, i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from idempotency.record), n_tup_upd, n_tup_hot_upd, n_dead_tup, autovacuum_count,
           pg_table_size(relid), pg_indexes_size(relid)
         from pg_stat_user_tables where relid = 'idempotency.record'::regclass",
    )
    .fetch_one(&mut connection)
    .await
    .expect("statistics");
    let [rows, dead, vacuumed, table, indexes] = [rows, dead, vacuumed, table, indexes].map(|n| n as f64);
    After { rows, hot: hot as f64 / updates as f64, dead, table, indexes, vacuumed }
}

/// Says so in time if the records would fill the disk.
pub(crate) fn has_room(server: &Server, rows: u64) {
    let output = Command::new("df").arg("-Pk").arg(server.data_dir()).output().expect("df");
    let free = String::from_utf8_lossy(&output.stdout)
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .expect("the free space, from df");
    let needed = rows * A_RECORD / 1024;
    assert!(free > needed, "{rows} records need {needed} kB on disk, and {free} are free: set BENCH_ROWS");
}

pub(crate) const OPERATION: &str = "payments.create";

/// Bytes of a response.
const BODY: usize = 300;

/// Bytes, with its indexes and its part of the log.
const A_RECORD: u64 = 2_000;

/// A transaction of so many at most.
const PIECE: u64 = 1_000_000;
