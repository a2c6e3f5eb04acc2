//! The schema, and whether it is there.

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _};

use crate::error::{Error, refusal};
use crate::rejection::RejectionKind;

/// Creates or updates the schema `idempotency`, with a migrations table of its own in it. An
/// application's own migrations are not disturbed.
///
/// Safe to call at every start, by many processes at once: they wait for each other. It takes one
/// connection of the pool, and closes it afterwards. Not through a transaction-pooling proxy, which
/// cannot hold the lock; the files in `migrations/` serve any other migrator.
///
/// # Errors
///
/// If the database cannot be reached, the role may not create the schema, or the schema is of a
/// newer version of this crate. A migration that fails is rolled back.
///
/// # Cancel safety
///
/// Dropping the future closes the connection: the migration under way is rolled back.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::PgPool::connect("postgres://localhost/app").await?;
/// tower_idempotency::migrate(&pool).await?;
/// # Ok(())
/// # }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    let failed = |error: sqlx::Error| Error::database("migrating the schema `idempotency`", error);
    let mut connection = pool.acquire().await.map_err(failed)?.detach();
    let migrated = async {
        sqlx::raw_sql(include_str!("sql/schema.sql")).execute(&mut connection).await?;
        migrator().run_direct(None, &mut connection, false).await
    }
    .await;
    // Whatever happened: a failed migration leaves its advisory lock with the session.
    let closed = connection.close().await;
    migrated.map_err(|error| match error {
        MigrateError::VersionMissing(version) => Error::misconfigured(format!(
            "the schema `idempotency` has migration {version}, which this version of the crate does not know; deploy a version that does"
        )),
        error => Error::database("migrating the schema `idempotency`", error),
    })?;
    closed.map_err(failed)
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.map(|(version, name, sql)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    migrator.dangerous_set_table_name("idempotency.migrations");
    migrator
}

const MIGRATIONS: [(i64, &str, &str); 3] = [
    (1, "record", include_str!("../migrations/0001_record.sql")),
    (2, "inbox", include_str!("../migrations/0002_inbox.sql")),
    (3, "outbox", include_str!("../migrations/0003_outbox.sql")),
];

/// Says what is wrong with the database, if anything.
pub(crate) async fn check(pool: &PgPool) -> Result<(), Error> {
    let failed = |error: sqlx::Error| Error::database("checking the schema `idempotency`", error);
    // Each in one message: through a transaction-pooling proxy the next one may meet another session.
    let found = sqlx::raw_sql(include_str!("sql/check.sql")).fetch_one(pool).await.map_err(failed)?;
    let flag = |name| found.try_get::<bool, _>(name).map_err(failed);
    let version: i32 = found.try_get("version").map_err(failed)?;
    if version < OLDEST_SERVER {
        return Err(Error::misconfigured(format!(
            "the server is PostgreSQL {}; this crate needs 14 or later",
            version / 10_000
        )));
    }
    if flag("standby")? {
        return Err(Error::misconfigured(
            "the server is a standby, which cannot be written to; connect to the primary",
        ));
    }
    if !flag("present")? {
        return Err(Error::misconfigured(
            "the table `idempotency.record` is missing; call `tower_idempotency::migrate(&pool)` at start, or run the files in `migrations/`",
        ));
    }
    if !flag("allowed")? {
        return Err(Error::misconfigured(
            "this role may not use `idempotency.record`; grant it usage on the schema `idempotency`, and select, insert, update and delete on its tables",
        ));
    }
    if !flag("may_register")? {
        return Err(Error::misconfigured(
            "this role may claim events, but not use `idempotency.outbox_relay`; grant it select, insert, update and delete on all tables of the schema `idempotency`",
        ));
    }
    // Prepared, not run: a missing column is an error, and nothing is touched.
    for statement in STATEMENTS {
        let prepared = format!("prepare {CHECKED} as {statement}\n; deallocate {CHECKED}");
        sqlx::raw_sql(AssertSqlSafe(prepared)).execute(pool).await.map_err(|error| match refusal(&error) {
            RejectionKind::MigrationMissing => Error::misconfigured(format!(
                "the schema `idempotency` is of another version than this crate ({error}); call `tower_idempotency::migrate(&pool)` at start, or run the files in `migrations/`"
            )),
            _ => Error::database("checking the statements against the schema `idempotency`", error),
        })?;
    }
    Ok(())
}

/// Every statement on the tables.
pub(crate) const STATEMENTS: [&str; 25] = [
    include_str!("sql/claim.sql"),
    include_str!("sql/failed.sql"),
    include_str!("sql/inbox_advance.sql"),
    include_str!("sql/inbox_held.sql"),
    include_str!("sql/inbox_receipt.sql"),
    include_str!("sql/inbox_receive.sql"),
    include_str!("sql/inbox_receive_batch.sql"),
    include_str!("sql/inbox_renew.sql"),
    include_str!("sql/inbox_sweep.sql"),
    include_str!("sql/outbox_claim.sql"),
    include_str!("sql/outbox_dead_list.sql"),
    include_str!("sql/outbox_publish.sql"),
    include_str!("sql/outbox_purge.sql"),
    include_str!("sql/outbox_read.sql"),
    include_str!("sql/outbox_reconcile.sql"),
    include_str!("sql/outbox_register.sql"),
    include_str!("sql/outbox_renew.sql"),
    include_str!("sql/outbox_requeue.sql"),
    include_str!("sql/outbox_settle.sql"),
    include_str!("sql/outbox_succeed.sql"),
    include_str!("sql/outbox_unregister.sql"),
    include_str!("sql/read.sql"),
    include_str!("sql/reclaim.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/sweep.sql"),
];

/// A prepared statement's name, for as long as one message takes.
const CHECKED: &str = "tower_idempotency_check";

/// The first with `client_connection_check_interval`.
const OLDEST_SERVER: i32 = 140_000;
