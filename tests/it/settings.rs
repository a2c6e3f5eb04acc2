//! What the layer sets for its transaction, and its bounds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::PgPool;
use tower_idempotency::{Sweeper, Tx};

use crate::support::{database, effect, effects, layer, serve, serve_behind, states};

const SETTINGS: &str = "select concat_ws(' ', current_setting('transaction_isolation'),
  current_setting('idle_in_transaction_session_timeout'), current_setting('client_connection_check_interval'))";

async fn settings(mut tx: Tx) -> String {
    sqlx::query_scalar(SETTINGS).fetch_one(&mut *tx).await.unwrap()
}

#[tokio::test]
async fn the_transaction_frees_the_key_when_its_owner_is_gone_and_the_pool_keeps_its_own_settings() {
    let db = database().await;
    let pool = db.pool(1).await;
    let own: String = sqlx::query_scalar(SETTINGS).fetch_one(&pool).await.unwrap();
    let minute = Duration::from_secs(60);
    let routes = [
        ("/default", layer(&pool), "read committed 65s 2s"),
        ("/longer", layer(&pool).execution_timeout(10 * minute), "read committed 605s 2s"),
        ("/slow", layer(&pool).response_timeout(minute), "read committed 2min 2s"),
        ("/little", layer(&pool).liveness_interval(Duration::from_nanos(1)), "read committed 65s 1ms"),
        ("/own", layer(&pool).liveness_interval(Duration::ZERO), "read committed 65s 0"),
        ("/rarely", layer(&pool).liveness_interval(minute), "read committed 65s 1min"),
        ("/late", layer(&pool).optional(), "read committed 65s 2s"),
    ];
    let mut app = Router::new();
    for (path, layer, _) in &routes {
        app = app.route(path, post(settings).route_layer(layer.clone().operation(*path)));
    }
    let service = serve(app).await;
    for (path, _, expected) in routes {
        let call = service.post(path);
        let call = if path == "/late" { call } else { call.key("k") };
        assert_eq!(call.send().await.text(), expected, "{path}");
        let after: String = sqlx::query_scalar(SETTINGS).fetch_one(&pool).await.unwrap();
        assert_eq!(after, own, "{path}");
    }
}

#[tokio::test]
async fn the_longest_durations_are_taken() {
    let db = database().await;
    let longest = layer(&db)
        .retention(Duration::MAX)
        .tombstone(Duration::MAX)
        .wait(Duration::MAX)
        .execution_timeout(Duration::MAX)
        .acquire_timeout(Duration::MAX)
        .response_timeout(Duration::MAX)
        .liveness_interval(Duration::MAX)
        .max_in_flight(usize::MAX);
    let service = serve_behind(longest, settings).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 200, "{first:?}");
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(states(&db).await, ["completed"]);
}

#[tokio::test]
async fn response_limit_panics_on_what_the_schema_does_not_take() {
    let db = database().await;
    let (largest, larger) = (layer(&db), layer(&db));
    let _ = largest.response_limit(64 << 20);
    assert!(catch_unwind(AssertUnwindSafe(|| larger.response_limit((64 << 20) + 1))).is_err());
}

/// The layer's statements that the pool's connection keeps under a name.
async fn named(pool: &PgPool) -> i64 {
    let named = "select count(*) from pg_prepared_statements where statement like '%idempotency.record%'
                 and statement not like '%pg_prepared_statements%'";
    sqlx::query_scalar(named).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn unnamed_statements_do_the_same_without_leaving_a_name_on_the_connection() {
    for unnamed in [false, true] {
        let db = database().await;
        let pool = db.pool(1).await;
        let pay = async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
        let decline = async |mut tx: Tx| {
            effect(&mut tx, "paid").await.unwrap();
            StatusCode::PAYMENT_REQUIRED
        };
        let mut base = layer(&pool);
        let mut sweeper = Sweeper::new(pool.clone());
        if unnamed {
            base = base.unnamed_statements();
            sweeper = sweeper.unnamed_statements();
        }
        let declined = post(decline).route_layer(base.clone().operation("declined"));
        let app = Router::new().route("/", post(pay).route_layer(base)).route("/declined", declined);
        let service = serve(app).await;
        for _ in 0..2 {
            for path in ["/", "/declined"] {
                let first = service.post(path).key("k").send().await;
                assert!(!first.is_replay());
                service.post(path).key("k").send().await.replays(&first);
            }
            // The second round takes over what has expired.
            sqlx::raw_sql("update idempotency.record set expires_at = now()").execute(&pool).await.unwrap();
        }
        assert_eq!(sweeper.run_once().await.unwrap().deleted, 2);
        assert_eq!(effects(&db, "paid").await, 2);
        assert_eq!(named(&pool).await == 0, unnamed);
    }
}

#[tokio::test]
async fn durations_of_zero_do_not_hang() {
    let db = database().await;
    let zero = layer(&db)
        .wait(Duration::ZERO)
        .acquire_timeout(Duration::ZERO)
        .response_timeout(Duration::ZERO)
        .liveness_interval(Duration::ZERO)
        .max_in_flight(0)
        .max_reruns(0);
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        StatusCode::CREATED
    };
    let service = serve_behind(zero, handler).await;
    let answer = tokio::time::timeout(Duration::from_secs(10), service.post("/").key("k").send()).await;
    assert_eq!(effects(&db, "paid").await, i64::from(answer.expect("it hangs").status == 201));
}
