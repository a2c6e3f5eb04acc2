//! A transaction that is dropped in the middle of a statement: its key and its connection are free
//! before the statement would end.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use devpg::TestDb;
use tokio::sync::mpsc;
use tower::ServiceExt as _;
use tower_idempotency::Tx;

use crate::support::{
    Runs, database, effect, effects, eventually, is_sound, layer, operation_of, serve_behind,
};

/// Waits until a statement with this text is running.
async fn is_running(db: &TestDb, text: &str) {
    eventually(std::panic::Location::caller(), async || {
        let running: bool = sqlx::query_scalar(
            "select exists (select from pg_stat_activity where datname = current_database()
             and pid <> pg_backend_pid() and state = 'active' and query like '%' || $1 || '%')",
        )
        .bind(text)
        .fetch_one(&**db)
        .await
        .unwrap();
        if running { Ok(()) } else { Err(format!("not running: {text}")) }
    })
    .await;
}

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_run_in_a_statement_frees_the_key_before_the_statement_ends() {
    let db = database().await;
    let pool = db.pool(1).await;
    let operation = operation_of(&pool, "payouts");
    let dropped = operation.clone();
    let run = tokio::spawn(async move {
        let sleeps = async |mut tx: Tx| -> Result<()> {
            effect(&mut tx, "paid").await?;
            sqlx::raw_sql("select pg_sleep(60)").execute(&mut *tx).await?;
            Ok(())
        };
        dropped.run("k", &(), sleeps).await.map_err(|error| error.to_string())
    });
    is_running(&db, "pg_sleep").await;
    run.abort();
    eventually(std::panic::Location::caller(), async || {
        let pay = async |mut tx: Tx| -> Result<i64> { Ok(effect(&mut tx, "paid").await?) };
        operation.run("k", &(), pay).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_key_dropped_in_a_statement_gives_its_connection_back() {
    let db = database().await;
    let pool = db.pool(1).await;
    let sleeps = async |mut tx: Tx, body: String| {
        effect(&mut tx, "paid").await.unwrap();
        if body == "sleep" {
            sqlx::raw_sql("select pg_sleep(60)").execute(&mut *tx).await.unwrap();
        }
        StatusCode::CREATED
    };
    let app = Router::new().route("/", post(sleeps).route_layer(layer(&pool).optional()));
    let request = |body: &str| Request::post("/").body(Body::from(body.to_owned())).unwrap();
    let first = tokio::spawn(app.clone().oneshot(request("sleep")));
    is_running(&db, "pg_sleep").await;
    first.abort();
    let second = app.oneshot(request("")).await.unwrap();
    assert_eq!(second.status(), 201);
    assert_eq!(effects(&db, "paid").await, 1);
    is_sound(&db, &pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_tx_dropped_in_a_statement_frees_its_key_before_the_statement_ends() {
    let db = database().await;
    let pool = db.pool(1).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let runs = Runs::default();
    let handler = async move |mut tx: Tx| {
        if runs.next() == 1 {
            let task = tokio::spawn(async move {
                let _ = sqlx::raw_sql("select pg_sleep(60)").execute(&mut *tx).await;
            });
            tell.send(task).unwrap();
        } else {
            effect(&mut tx, "paid").await.unwrap();
        }
        StatusCode::CREATED
    };
    let service = serve_behind(layer(&pool), handler).await;
    service.post("/").key("k").send().await.is_rejected(500, "transaction-kept");
    is_running(&db, "pg_sleep").await;
    told.recv().await.unwrap().abort();
    eventually(std::panic::Location::caller(), async || {
        let answer = service.post("/").key("k").send().await;
        if answer.status == 201 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    is_sound(&db, &pool).await;
}
