//! A database per test.

use crate::shared::{self, Shared, shared};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

/// A database of its own for one test, with a pool of up to ten connections, as which it can be used.
///
/// On a private server, it is dropped some time after this value is. On a `DATABASE_URL` server it
/// is dropped together with this value, except in a thread that is panicking: the database of a
/// failed test stays, to be looked at. What a process has left there (such databases, all of them
/// if it was killed, and always its template) is dropped by the next process that uses this crate on
/// that server.
pub struct TestDb {
    pool: PgPool,
    options: PgConnectOptions,
    /// For further pools, if they are to reach it in another way.
    further: Option<PgConnectOptions>,
    name: String,
}

impl TestDb {
    /// Its connect options.
    pub fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A further pool, of at most this many connections.
    pub async fn pool(&self, max_connections: u32) -> PgPool {
        self.pool_with(PgPoolOptions::new().max_connections(max_connections)).await
    }

    /// A further pool with these options, such as another `acquire_timeout`.
    pub async fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        connect(shared(), options, self.further.as_ref().unwrap_or(&self.options)).await
    }

    /// The same database, whose further pools reach it in another way, through a proxy for example.
    #[must_use]
    pub fn further_pools(mut self, options: PgConnectOptions) -> TestDb {
        self.further = Some(options);
        self
    }
}

impl Deref for TestDb {
    type Target = PgPool;

    fn deref(&self) -> &PgPool {
        &self.pool
    }
}

impl fmt::Debug for TestDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDb").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Databases of the private server that no test uses any more.
static FINISHED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Drop for TestDb {
    fn drop(&mut self) {
        let shared = shared();
        let name = mem::take(&mut self.name);
        if shared.is_private() {
            return FINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        }
        if thread::panicking() {
            return eprintln!("devpg: left the database {name} to be looked at");
        }
        let dropped = shared::spawn(async move {
            let mut admin = shared.connect().await;
            run(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        });
        if let Ok(thread) = dropped {
            let _ = thread.join();
        }
    }
}

/// A fresh database with all that `setup` makes: a copy of a template.
///
/// The template is made once per process: only the first call's `setup` runs, so all must do the
/// same. Of the pool that `setup` is given, no connection must be used after it returns.
///
/// # Panics
///
/// If there is no server, as [`server`](crate::server) does; or if the database cannot be made.
pub async fn database<F>(setup: F) -> TestDb
where
    F: AsyncFnOnce(&PgPool),
{
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    create(TEMPLATE.get_or_init(|| template(setup)).await).await
}

/// A fresh database with nothing in it, for tests of migrations.
///
/// # Panics
///
/// As [`database`] does.
pub async fn empty_database() -> TestDb {
    create("template0").await
}

async fn create(template: &str) -> TestDb {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let shared = shared();
    let mut admin = shared.connect().await;
    let finished = mem::take(&mut *FINISHED.lock().unwrap_or_else(PoisonError::into_inner));
    for old in finished {
        let _ = admin.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {old} WITH (FORCE)"))).await;
    }
    let name = format!("{}_{}", shared.prefix, NEXT.fetch_add(1, Ordering::Relaxed));
    copy(&mut admin, template, &name, shared).await;
    let _ = admin.close().await;
    let options = shared.database(&name);
    let pool = connect(shared, PgPoolOptions::new().max_connections(10), &options).await;
    TestDb { pool, options, further: None, name }
}

async fn template<F>(setup: F) -> String
where
    F: AsyncFnOnce(&PgPool),
{
    let shared = shared();
    let name = shared.prefix.clone();
    let mut admin = shared.connect().await;
    run(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await; // of a setup that panicked
    copy(&mut admin, "template0", &name, shared).await;
    let pool = connect(shared, PgPoolOptions::new().max_connections(10), &shared.database(&name)).await;
    setup(&pool).await;
    // A template must have no connections: not those of the pool, nor those that were leaked.
    let _ = timeout(Duration::from_secs(5), pool.close()).await;
    run(&mut admin, format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
    run(
        &mut admin,
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
    )
    .await;
    let _ = admin.close().await;
    name
}

/// Makes a database as a copy of another one, as soon as nobody is connected to that.
async fn copy(admin: &mut PgConnection, template: &str, name: &str, shared: &Shared) {
    // Copying files is faster than logging their contents where nothing is synced to disk.
    let version = admin.server_version_num().unwrap_or_default();
    let strategy = if shared.is_private() && version >= 150_000 { "STRATEGY file_copy" } else { "" };
    let sql = format!("CREATE DATABASE {name} TEMPLATE {template} {strategy}");
    let started = Instant::now();
    while let Err(error) = admin.execute(AssertSqlSafe(sql.as_str())).await {
        let in_use = error.as_database_error().is_some_and(|e| e.code().as_deref() == Some("55006"));
        if !in_use || started.elapsed() > PATIENCE {
            panic!("devpg: {sql}: {error}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn connect(shared: &Shared, pool: PgPoolOptions, options: &PgConnectOptions) -> PgPool {
    match pool.connect_with(options.clone()).await {
        Ok(pool) => pool,
        Err(error) => panic!("devpg: {}", shared.cannot_connect(&error)),
    }
}

async fn run(admin: &mut PgConnection, sql: String) {
    if let Err(error) = admin.execute(AssertSqlSafe(sql.as_str())).await {
        panic!("devpg: {sql}: {error}");
    }
}
