//! `migrate` makes the schema, whoever else is at it, and leaves nothing behind.

use std::panic::Location;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use devpg::TestDb;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, SqlSafeStr as _};
use tokio::sync::Barrier;
use tower_idempotency::migrate;

use crate::support::eventually;

/// The tables of a database, with their schemas.
pub(crate) async fn tables(pool: &PgPool) -> Vec<String> {
    let tables = "select schemaname || '.' || tablename from pg_tables
                  where schemaname not in ('pg_catalog', 'information_schema') order by 1";
    sqlx::query_scalar(tables).fetch_all(pool).await.unwrap()
}

pub(crate) const OURS: [&str; 9] = [
    "idempotency.inbox",
    "idempotency.inbox_stream",
    "idempotency.migrations",
    "idempotency.outbox",
    "idempotency.outbox_dead",
    "idempotency.outbox_lane",
    "idempotency.outbox_look",
    "idempotency.outbox_relay",
    "idempotency.record",
];

/// A pool whose sessions have a name.
async fn named(db: &TestDb, name: &str) -> PgPool {
    let options = db.options().application_name(name);
    PgPoolOptions::new().max_connections(3).connect_with(options).await.unwrap()
}

/// Asserts that no session of this name is left but those in the pool, and no advisory lock.
async fn nothing_is_left(db: &TestDb, pool: &PgPool, name: &str) {
    eventually(Location::caller(), async || {
        let sessions: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = $1",
        )
        .bind(name)
        .fetch_one(&**db)
        .await
        .unwrap();
        let locks: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database
             where l.locktype = 'advisory' and d.datname = current_database()",
        )
        .fetch_one(&**db)
        .await
        .unwrap();
        let pooled = i64::from(pool.size());
        if (sessions, locks) == (pooled, 0) {
            Ok(())
        } else {
            Err(format!("{sessions} sessions, {pooled} of them in the pool, and {locks} locks"))
        }
    })
    .await;
}

#[tokio::test]
async fn an_empty_database_gets_the_schema_and_a_second_call_does_no_harm() {
    let db = devpg::empty_database().await;
    let pool = named(&db, "migrating").await;
    for _ in 0..3 {
        migrate(&pool).await.unwrap();
        assert_eq!(tables(&db).await, OURS);
        nothing_is_left(&db, &pool, "migrating").await;
    }
    let versions: Vec<i64> = sqlx::query_scalar("select version from idempotency.migrations order by 1")
        .fetch_all(&*db)
        .await
        .unwrap();
    assert_eq!(versions[0], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pools_migrate_at_once() {
    let db = devpg::empty_database().await;
    let mut pools = Vec::new();
    for _ in 0..20 {
        pools.push(db.pool(1).await);
    }
    let together = Arc::new(Barrier::new(pools.len()));
    let migrating: Vec<_> = pools
        .into_iter()
        .map(|pool| {
            let together = Arc::clone(&together);
            tokio::spawn(async move {
                together.wait().await;
                migrate(&pool).await
            })
        })
        .collect();
    for migrated in migrating {
        migrated.await.unwrap().unwrap();
    }
    assert_eq!(tables(&db).await, OURS);
}

/// In a process of its own, which waits for the word to begin.
#[test]
#[ignore = "run by `twenty_processes_migrate_at_once`"]
fn a_process_that_migrates() {
    let Ok(url) = std::env::var("MIGRATE_URL") else { return };
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { migrate(&PgPool::connect(&url).await.unwrap()).await.unwrap() });
}

#[tokio::test]
async fn twenty_processes_migrate_at_once() {
    let db = devpg::empty_database().await;
    let url = db.options().to_url_lossy();
    let mut processes = Vec::new();
    for _ in 0..20 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "migrate::a_process_that_migrates"])
            .env("MIGRATE_URL", url.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        processes.push((process.stdin.take().unwrap(), process));
    }
    for (word, _) in &mut processes {
        std::io::Write::write_all(word, b"go\n").unwrap();
    }
    for (_, process) in processes {
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said} {:?}", output.stderr);
    }
    assert_eq!(tables(&db).await, OURS);
}

#[tokio::test]
async fn a_migration_that_fails_is_rolled_back_and_leaves_nothing_behind() {
    let db = devpg::empty_database().await;
    sqlx::raw_sql("create schema idempotency; create table idempotency.record (other text)")
        .execute(&*db)
        .await
        .unwrap();
    let pool = named(&db, "failing").await;
    for _ in 0..2 {
        let error = migrate(&pool).await.unwrap_err();
        assert!(error.to_string().contains("migrating the schema `idempotency`"), "{error}");
        let mut source = std::error::Error::source(&error);
        let mut causes = String::new();
        while let Some(cause) = source {
            causes.push_str(&format!("{cause}\n"));
            source = cause.source();
        }
        assert!(causes.contains("\"record\" already exists"), "{causes}");
        nothing_is_left(&db, &pool, "failing").await;
    }
    sqlx::raw_sql("drop table idempotency.record").execute(&*db).await.unwrap();
    migrate(&pool).await.unwrap();
    assert_eq!(tables(&db).await, OURS);
}

/// Waits until the session of this name waits for a lock.
async fn waits(db: &TestDb, name: &str) {
    eventually(Location::caller(), async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'",
        )
        .bind(name)
        .fetch_one(&**db)
        .await
        .unwrap();
        if waiting == 1 { Ok(()) } else { Err("it does not wait".to_owned()) }
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_another_is_about_to_create_is_waited_for() {
    for kept in [true, false] {
        let db = devpg::empty_database().await;
        let pool = named(&db, "waiting").await;
        let mut other = db.begin().await.unwrap();
        sqlx::raw_sql("create schema idempotency").execute(&mut *other).await.unwrap();
        let mut migrating = Box::pin(migrate(&pool));
        tokio::select! {
            result = &mut migrating => panic!("it did not wait: {result:?}"),
            () = waits(&db, "waiting") => {}
        }
        if kept {
            other.commit().await.unwrap()
        } else {
            other.rollback().await.unwrap()
        }
        migrating.await.unwrap();
        assert_eq!(tables(&db).await, OURS);
    }
}

#[tokio::test]
async fn a_migration_dropped_halfway_is_rolled_back_and_leaves_nothing_behind() {
    let db = devpg::empty_database().await;
    let pool = named(&db, "dropped").await;
    // It waits for this one, in the middle.
    let mut other = db.begin().await.unwrap();
    sqlx::raw_sql("create schema idempotency").execute(&mut *other).await.unwrap();
    let mut migrating = Box::pin(migrate(&pool));
    tokio::select! {
        result = &mut migrating => panic!("it did not wait: {result:?}"),
        () = waits(&db, "dropped") => {}
    }
    drop(migrating);
    other.rollback().await.unwrap();
    nothing_is_left(&db, &pool, "dropped").await;
    migrate(&pool).await.unwrap();
    assert_eq!(tables(&db).await, OURS);
}

fn application() -> Migrator {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    // With the versions and names of ours.
    Migrator::with_migrations(vec![
        migration(1, "record", "create table record (id bigint primary key)"),
        migration(2, "more", "create table more (id bigint primary key)"),
    ])
}

#[tokio::test]
async fn the_migrations_of_the_application_are_not_disturbed() {
    let expected = [&OURS[..], &["public._sqlx_migrations", "public.more", "public.record"]].concat();
    for ours_first in [true, false] {
        let db = devpg::empty_database().await;
        if ours_first {
            migrate(&db).await.unwrap();
        }
        for _ in 0..2 {
            application().run(&*db).await.unwrap();
            migrate(&db).await.unwrap();
        }
        assert_eq!(tables(&db).await, expected);
        let theirs: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations order by 1")
            .fetch_all(&*db)
            .await
            .unwrap();
        assert_eq!(theirs, [1, 2]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_migrations_of_the_application_may_run_at_the_same_time() {
    let db = devpg::empty_database().await;
    let (pool, other) = (db.pool(1).await, db.pool(1).await);
    let ours = tokio::spawn(async move { migrate(&pool).await });
    let theirs = tokio::spawn(async move { application().run(&other).await });
    ours.await.unwrap().unwrap();
    theirs.await.unwrap().unwrap();
    assert_eq!(tables(&db).await.len(), OURS.len() + 3);
}

#[tokio::test]
async fn a_migration_of_a_newer_version_is_an_error_that_says_so() {
    let db = devpg::empty_database().await;
    migrate(&db).await.unwrap();
    let newer = "insert into idempotency.migrations (version, description, success, checksum, execution_time)
                 values (4711, 'from the future', true, '\\x00', 1)";
    sqlx::query(newer).execute(&*db).await.unwrap();
    let pool = named(&db, "older").await;
    let error = migrate(&pool).await.unwrap_err().to_string();
    assert!(error.contains("4711") && error.contains("deploy a version that does"), "{error}");
    nothing_is_left(&db, &pool, "older").await;
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_an_error_in_the_pools_own_time() {
    let db = devpg::empty_database().await;
    let pool = db
        .pool_with(PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(100)))
        .await;
    let held = pool.acquire().await.unwrap();
    let error = migrate(&pool).await.unwrap_err();
    assert!(error.to_string().contains("migrating the schema"), "{error}");
    drop(held);
    migrate(&pool).await.unwrap();
}
