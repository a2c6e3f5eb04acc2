//! What is wrong with the database, and for whom: restricted roles, an absent schema, an old one.

use std::error::Error as _;
use std::fs;

use axum::Router;
use axum::routing::post;
use devpg::{Server, TestDb};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tower_idempotency::{Error, Tx, migrate};

use crate::migrate::tables;
use crate::support::{Logs, database, effect, layer, serve, serve_behind};

async fn run(pool: &PgPool, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.unwrap();
}

/// A role that may do nothing, and a pool that acts as it. Roles belong to the whole server: its
/// name is the database's.
struct Restricted {
    role: String,
    pool: PgPool,
}

impl Restricted {
    async fn new(db: &TestDb) -> Self {
        let role = format!("{}_restricted", db.name());
        run(db, format!("create role {role}; grant create on schema public to {role}")).await;
        let options = db.options().options([("role", &role)]);
        let pool = PgPoolOptions::new().max_connections(3).connect_with(options).await.unwrap();
        Self { role, pool }
    }

    /// Also when the server is one of the developer's own.
    async fn forget(self, db: &TestDb) {
        self.pool.close().await;
        run(db, format!("drop owned by {0}; drop role {0}", self.role)).await;
    }
}

fn causes(error: &Error) -> String {
    let mut causes = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    causes
}

#[tokio::test]
async fn a_role_that_owns_the_schema_but_may_not_create_one_migrates() {
    let db = devpg::empty_database().await;
    let restricted = Restricted::new(&db).await;
    let error = migrate(&restricted.pool).await.unwrap_err();
    assert!(causes(&error).contains("permission denied for database"), "{}", causes(&error));
    assert_eq!(tables(&db).await, Vec::<String>::new());

    run(&db, format!("create schema idempotency authorization {}", restricted.role)).await;
    for _ in 0..2 {
        migrate(&restricted.pool).await.unwrap();
    }
    layer(&restricted.pool).check().await.unwrap();
    assert_eq!(tables(&db).await, super::migrate::OURS);
    restricted.forget(&db).await;
}

#[tokio::test]
async fn a_migrated_database_is_fine() {
    let db = database().await;
    layer(&db).check().await.unwrap();
    // Nothing was touched.
    let touched: i64 =
        sqlx::query_scalar("select count(*) from idempotency.record").fetch_one(&*db).await.unwrap();
    assert_eq!(touched, 0);
}

#[tokio::test]
async fn a_missing_table_is_named_with_the_remedy() {
    let db = devpg::empty_database().await;
    for sql in ["select", "create schema idempotency"] {
        run(&db, sql.to_owned()).await;
        let error = layer(&db).check().await.unwrap_err().to_string();
        assert!(
            error.contains("`idempotency.record` is missing") && error.contains("migrate(&pool)"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn each_missing_privilege_is_named_with_the_remedy() {
    let db = database().await;
    let restricted = Restricted::new(&db).await;
    let role = &restricted.role;
    let refused = async |what: &str| {
        let error = layer(&restricted.pool).check().await.unwrap_err();
        assert!(error.to_string().contains("may not use `idempotency.record`"), "{what}: {}", causes(&error));
        assert!(error.to_string().contains("grant it usage"), "{what}: {error}");
    };
    refused("nothing granted").await;
    run(&db, format!("grant usage on schema idempotency to {role}")).await;
    refused("only usage of the schema").await;
    run(&db, format!("grant select, insert, update, delete on idempotency.record to {role}")).await;
    layer(&restricted.pool).check().await.unwrap();
    for privilege in ["select", "insert", "update", "delete"] {
        run(&db, format!("revoke {privilege} on idempotency.record from {role}")).await;
        refused(privilege).await;
        run(&db, format!("grant {privilege} on idempotency.record to {role}")).await;
    }
    // Who relays, too, needs all of the relay's tables.
    run(&db, format!("grant select, insert, update, delete on idempotency.outbox_lane to {role}")).await;
    run(&db, format!("grant select, insert, update, delete on idempotency.outbox_relay to {role}")).await;
    layer(&restricted.pool).check().await.unwrap();
    for privilege in ["select", "insert", "update", "delete"] {
        run(&db, format!("revoke {privilege} on idempotency.outbox_relay from {role}")).await;
        let error = layer(&restricted.pool).check().await.unwrap_err().to_string();
        assert!(error.contains("not use `idempotency.outbox_relay`; grant it"), "{privilege}: {error}");
        run(&db, format!("grant {privilege} on idempotency.outbox_relay to {role}")).await;
    }
    run(&db, format!("revoke usage on schema idempotency from {role}")).await;
    refused("all but usage of the schema").await;
    restricted.forget(&db).await;
}

#[tokio::test]
async fn a_role_with_no_more_than_the_four_privileges_serves() {
    let db = database().await;
    let restricted = Restricted::new(&db).await;
    let role = &restricted.role;
    run(
        &db,
        format!(
            "grant usage on schema idempotency to {role}; grant select, insert on effect to {role};
             grant select, insert, update, delete on idempotency.record to {role}"
        ),
    )
    .await;
    let handler = async |mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
    let route = post(handler).route_layer(layer(&restricted.pool));
    let service = serve(Router::new().route("/", route)).await;
    let first = service.post("/").key("k").send().await;
    assert_eq!(first.status, 200);
    service.post("/").key("k").send().await.replays(&first);
    run(&db, "update idempotency.record set expires_at = now()".to_owned()).await;
    let sweeper = tower_idempotency::Sweeper::new(restricted.pool.clone());
    assert_eq!(sweeper.run_once().await.unwrap().deleted, 1);
    restricted.forget(&db).await;
}

#[tokio::test]
async fn a_table_with_too_few_columns_is_named_with_the_remedy() {
    let db = database().await;
    run(&db, "alter table idempotency.record drop column tombstone".to_owned()).await;
    let error = layer(&db).check().await.unwrap_err();
    assert!(causes(&error).contains("tombstone"), "{}", causes(&error));
    assert!(error.to_string().contains("migrate(&pool)"), "{error}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error() {
    let server = Server::start().unwrap();
    let pool = PgPoolOptions::new().connect_with(server.options("postgres")).await.unwrap();
    server.stop().unwrap();
    let error = layer(&pool).check().await.unwrap_err();
    assert!(error.to_string().contains("checking the schema"), "{}", causes(&error));
}

#[tokio::test]
async fn a_standby_is_named_with_the_remedy() {
    let server = Server::builder().setting("wal_level", "replica").start().unwrap();
    let pool = PgPoolOptions::new().connect_with(server.options("postgres")).await.unwrap();
    migrate(&pool).await.unwrap();
    server.stop().unwrap();
    // A primary's own copy, without a primary to follow.
    fs::write(server.data_dir().join("standby.signal"), "").unwrap();
    server.restart().unwrap();
    let error = layer(&pool).check().await.unwrap_err().to_string();
    assert!(error.contains("standby") && error.contains("connect to the primary"), "{error}");
}

#[tokio::test]
async fn a_request_before_the_migration_is_a_500_and_works_after_it() {
    let logs = Logs::capture();
    let db = devpg::empty_database().await;
    let handler = async |_: Tx| "paid";
    let service = serve_behind(layer(&db), handler).await;
    let answer = service.post("/").key("k").send().await;
    answer.is_rejected(500, "migration-missing");
    assert_eq!(answer.json()["retry"], "same-key");
    assert!(!answer.text().contains("record"), "{answer:?}");
    assert!(logs.text().contains("idempotency.record"), "{}", logs.text());
    migrate(&db).await.unwrap();
    assert_eq!(service.post("/").key("k").send().await.status, 200);
    run(&db, "alter table idempotency.record drop column claim_id".to_owned()).await;
    service.post("/").key("another").send().await.is_rejected(500, "migration-missing");
}
