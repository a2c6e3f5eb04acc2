//! The runtime ends while executions are under way.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;
use tower_idempotency::Tx;

use crate::support::{database, effect, effects, eventually, is_sound, layer};

#[test]
fn a_runtime_that_ends_with_executions_under_way_does_not_panic_and_leaves_the_key_free() {
    let outer = Runtime::new().unwrap();
    let db = outer.block_on(database());
    for workers in [0, 2] {
        let inner = if workers == 0 {
            Builder::new_current_thread().enable_all().build().unwrap()
        } else {
            Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
        };
        let key = format!("k{workers}");
        inner.block_on(async {
            let pool = PgPoolOptions::new().connect_with(db.options()).await.unwrap();
            let handler = async |mut tx: Tx| {
                effect(&mut tx, "undone").await.unwrap();
                std::future::pending::<()>().await;
            };
            let app = Router::new().route("/", post(handler).route_layer(layer(&pool)));
            let request = Request::post("/").header("idempotency-key", &key).body(Body::empty()).unwrap();
            let run = tokio::spawn(app.oneshot(request));
            eventually(std::panic::Location::caller(), async || {
                let idle: i64 = sqlx::query_scalar(
                    "select count(*) from pg_stat_activity where datname = current_database()
                     and state = 'idle in transaction' and query like 'insert into effect%'",
                )
                .fetch_one(&pool)
                .await
                .unwrap();
                if idle == 1 { Ok(()) } else { Err(format!("{idle}")) }
            })
            .await;
            run.abort();
        });
        drop(inner);
        outer.block_on(async {
            let handler = async |mut tx: Tx| {
                effect(&mut tx, "paid").await.unwrap();
                StatusCode::CREATED
            };
            let app = Router::new().route("/", post(handler).route_layer(layer(&db)));
            eventually(std::panic::Location::caller(), async || {
                let request = Request::post("/").header("idempotency-key", &key).body(Body::empty()).unwrap();
                let answer = app.clone().oneshot(request).await.unwrap();
                if answer.status() == 201 { Ok(()) } else { Err(format!("{answer:?}")) }
            })
            .await;
            is_sound(&db, &db).await;
            assert_eq!(effects(&db, "undone").await, 0);
        });
    }
    drop(outer);
    drop(db);
}
