//! How long a response can be replayed, and what a late retry gets.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::PgPool;
use tower_idempotency::{IdempotencyLayer, Retention, Sweeper, Tx};

use crate::support::{Service, database, effect, effects, layer, records, serve, serve_behind, states};

const HOUR: Duration = Duration::from_secs(3_600);

async fn pay(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::CREATED, id.to_string())
}

/// A card that is always declined.
async fn decline(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::PAYMENT_REQUIRED, id.to_string())
}

async fn start(layer: IdempotencyLayer) -> Service {
    let declined = post(decline).route_layer(layer.clone().operation("declined"));
    serve(Router::new().route("/", post(pay).route_layer(layer)).route("/declined", declined)).await
}

/// Makes all records older.
async fn age(pool: &PgPool, by: &str) {
    let aged = "update idempotency.record
      set created_at = created_at - $1::interval, expires_at = expires_at - $1::interval";
    let by: sqlx::postgres::types::PgInterval =
        sqlx::query_scalar("select $1::text::interval").bind(by).fetch_one(pool).await.unwrap();
    sqlx::query(aged).bind(by).execute(pool).await.unwrap();
}

/// Seconds from creation to expiry, by operation.
async fn kept_for(pool: &PgPool, operation: &str) -> f64 {
    let kept = "select extract(epoch from expires_at - created_at)::float8
                from idempotency.record where operation = $1";
    sqlx::query_scalar(kept).bind(operation).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn an_expired_record_counts_as_absent_though_the_sweeper_never_ran() {
    let db = database().await;
    let service = start(layer(&db).retention(HOUR)).await;
    for (path, status) in [("/", 201), ("/declined", 402)] {
        let first = service.post(path).key("k").json("{}").send().await;
        assert_eq!(first.status, status);
        age(&db, "59 minutes").await;
        service.post(path).key("k").json("{}").send().await.replays(&first);
        age(&db, "2 minutes").await;
        // With another payload, too: the key is free.
        let anew = service.post(path).key("k").json("[]").send().await;
        assert_eq!((anew.status.as_u16(), anew.is_replay()), (status, false));
        assert_ne!(anew.text(), first.text());
        service.post(path).key("k").json("[]").send().await.replays(&anew);
        service.post(path).key("k").json("{}").send().await.is_rejected(422, "key-reused");
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (2, 2));
}

#[tokio::test]
async fn retention_counts_from_settling() {
    let db = database().await;
    // Its claim expires while the handler runs.
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "paid").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        StatusCode::CREATED
    };
    let slow = layer(&db).retention(Duration::from_secs(1));
    let service = serve_behind(slow, handler).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 201);
    service.post("/").key("k").send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn under_a_tombstone_a_late_retry_is_410_and_after_it_is_executed_anew() {
    for sweeps in [false, true] {
        let db = database().await;
        let service = start(layer(&db).retention(HOUR).tombstone(24 * HOUR)).await;
        let sweep = async |tombstoned: u64, deleted: u64| {
            if sweeps {
                let swept = Sweeper::new(db.clone()).run_once().await.unwrap();
                assert_eq!((swept.tombstoned, swept.deleted), (tombstoned, deleted));
            }
        };
        let first = service.post("/").key("k").json("{}").send().await;
        sweep(0, 0).await;
        service.post("/").key("k").json("{}").send().await.replays(&first);
        age(&db, "2 hours").await;
        sweep(1, 0).await;
        for _ in 0..2 {
            let late = service.post("/").key("k").json("{}").send().await;
            late.is_rejected(410, "response-expired");
            assert_eq!((late.json()["retry"].as_str(), late.header("retry-after")), (Some("never"), None));
            service.post("/").key("k").json("[]").send().await.is_rejected(422, "key-reused");
        }
        assert_eq!(effects(&db, "paid").await, 1);
        assert_eq!(states(&db).await, [if sweeps { "tombstone" } else { "completed" }]);
        age(&db, "22 hours").await;
        sweep(0, 0).await;
        service.post("/").key("k").json("{}").send().await.is_rejected(410, "response-expired");
        age(&db, "2 hours").await;
        sweep(0, 1).await;
        let anew = service.post("/").key("k").json("{}").send().await;
        assert_eq!((anew.status.as_u16(), anew.is_replay()), (201, false), "{anew:?}");
        assert_eq!((records(&db).await, effects(&db, "paid").await), (1, 2));
        // And is kept as long as the first.
        service.post("/").key("k").json("{}").send().await.replays(&anew);
        age(&db, "2 hours").await;
        service.post("/").key("k").json("{}").send().await.is_rejected(410, "response-expired");
    }
}

#[tokio::test]
async fn a_refusal_has_no_tombstone() {
    let db = database().await;
    let service = start(layer(&db).retention(HOUR).tombstone(HOUR)).await;
    assert_eq!(service.post("/declined").key("k").send().await.status, 402);
    age(&db, "61 minutes").await;
    // Nothing has happened that a second execution could double.
    let anew = service.post("/declined").key("k").send().await;
    assert_eq!((anew.status.as_u16(), anew.is_replay()), (402, false));
}

#[tokio::test]
async fn each_route_has_its_own_retention() {
    let db = database().await;
    let shared = layer(&db);
    let routes = [
        ("default", shared.clone()),
        ("days", shared.clone().retention(Retention::days(45))),
        ("hours", shared.clone().retention(Retention::hours(3))),
        ("duration", shared.clone().retention(Duration::from_millis(1_500_500))),
        ("covering", shared.clone().retention(Retention::covering([HOUR.into(), Retention::days(14)]))),
        ("longest", shared.retention(Duration::MAX)),
    ];
    let mut app = Router::new();
    for (name, layer) in routes {
        app = app.route(&format!("/{name}"), post(pay).route_layer(layer.operation(name)));
    }
    let service = serve(app).await;
    let day = 86_400.0;
    for (name, seconds) in [
        ("default", day),
        ("days", 45.0 * day),
        ("hours", 10_800.0),
        ("duration", 1_500.5),
        ("covering", 14.0 * day),
        ("longest", 100.0 * 365.0 * day),
    ] {
        let first = service.post(&format!("/{name}")).key("k").send().await;
        assert_eq!(first.status, 201, "{name}: {first:?}");
        let kept = kept_for(&db, name).await;
        assert!((kept - seconds).abs() < 1.0, "{name}: {kept}");
    }
}

#[tokio::test]
async fn without_any_retention_each_request_is_executed() {
    let db = database().await;
    let service = start(layer(&db).retention(Duration::ZERO)).await;
    for _ in 0..2 {
        let answer = service.post("/").key("k").send().await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    }
    assert_eq!(effects(&db, "paid").await, 2);
}
