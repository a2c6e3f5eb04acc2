//! A database per test.

use devpg::{TestDb, database, empty_database, private_server, server};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static SETUPS: AtomicU32 = AtomicU32::new(0);

/// It leaks connections, which must not keep the database from being copied.
async fn setup(pool: &PgPool) {
    SETUPS.fetch_add(1, Ordering::Relaxed);
    sqlx::query("CREATE TABLE t (n int PRIMARY KEY)").execute(pool).await.expect("create");
    sqlx::query("INSERT INTO t VALUES (1)").execute(pool).await.expect("insert");
    std::mem::forget(pool.acquire().await.expect("acquire").detach());
    let idle = PgConnection::connect_with(&pool.connect_options()).await.expect("connect");
    tokio::spawn(async move {
        let _idle = idle;
        std::future::pending::<()>().await;
    });
}

async fn count(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(pool).await.expect("count")
}

/// Each test of this kind has a runtime of its own, and so must the connections.
async fn use_it(number: i32) -> String {
    let db: TestDb = database(setup).await;
    assert_eq!(count(&db).await, 1, "it is a copy of the template, and nobody else's");
    // one transaction waits for the other
    let mut first = db.begin().await.expect("begin");
    sqlx::query("INSERT INTO t VALUES (2)").execute(&mut *first).await.expect("insert");
    let pool: PgPool = db.clone();
    let second = tokio::spawn(async move { sqlx::query("INSERT INTO t VALUES (2)").execute(&pool).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&*db).await.expect("count") == 0 {
        tokio::task::yield_now().await;
    }
    first.commit().await.expect("commit");
    let error = second.await.expect("join").expect_err("a duplicate");
    assert_eq!(error.as_database_error().and_then(|e| e.code()).as_deref(), Some("23505"));
    let mut listener = PgListener::connect_with(&db).await.expect("listen");
    listener.listen("channel").await.expect("listen");
    sqlx::query("SELECT pg_notify('channel', $1)")
        .bind(number.to_string())
        .execute(&*db)
        .await
        .expect("notify");
    assert_eq!(listener.recv().await.expect("receive").payload(), number.to_string());
    assert_eq!(SETUPS.load(Ordering::Relaxed), 1);
    db.name().to_owned()
}

#[test]
fn many_at_once() {
    let test = |number| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(use_it(number))
    };
    let number = if private_server().is_some() { 40 } else { 8 }; // others may need connections there
    let threads: Vec<_> = (0..number).map(|number| std::thread::spawn(move || test(number))).collect();
    let mut names: Vec<String> = threads.into_iter().map(|thread| thread.join().expect("join")).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), number as usize);
}

#[tokio::test]
async fn one_more() {
    use_it(1).await;
}

#[tokio::test]
async fn yet_another() {
    use_it(2).await;
}

#[tokio::test]
async fn pools() {
    let db = database(setup).await;
    assert_eq!(db.options().get_database(), Some(db.name()));
    let small = db.pool(2).await;
    let _held = (small.acquire().await.expect("first"), small.acquire().await.expect("second"));
    assert!(small.try_acquire().is_none(), "it has two connections");
    let hasty = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(50));
    let hasty = db.pool_with(hasty).await;
    let _one = hasty.acquire().await.expect("one");
    assert!(matches!(hasty.acquire().await, Err(sqlx::Error::PoolTimedOut)));
    let mut ten = Vec::new();
    for _ in 0..10 {
        ten.push(db.acquire().await.expect("one of ten"));
    }
    assert!(db.try_acquire().is_none(), "it has ten connections");
    assert_eq!(count(&db.pool(1).await).await, 1, "all of the same database");
}

#[tokio::test]
async fn empty() {
    let db = empty_database().await;
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    assert_eq!(sqlx::query_scalar::<_, i64>(tables).fetch_one(&*db).await.expect("count"), 0);
    sqlx::query("CREATE TABLE t (n int)").execute(&*db).await.expect("it can be used");
    let encoding =
        sqlx::query_scalar::<_, String>("SHOW server_encoding").fetch_one(&*db).await.expect("show");
    assert_eq!(encoding, "UTF8");
}

#[tokio::test]
async fn finished_databases_are_dropped() {
    let finished = empty_database().await;
    let name = finished.name().to_owned();
    let _open = finished.acquire().await.expect("a connection that is still open");
    drop(finished);
    drop(empty_database().await);
    let mut admin = PgConnection::connect_with(&server()).await.expect("connect");
    let exists = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    // by this call of `empty_database`, or by another one at the same time
    for _ in 0..1000 {
        if !sqlx::query_scalar::<_, bool>(exists).bind(&name).fetch_one(&mut admin).await.expect("select") {
            return;
        }
    }
    panic!("{name} is still there");
}

#[test]
fn the_private_server() {
    match private_server() {
        Some(private) => {
            let options = server();
            assert_eq!(options.get_socket().map(|socket| socket.as_path()), Some(private.socket_dir()));
        }
        None => assert!(std::env::var_os("DATABASE_URL").is_some()),
    }
}
