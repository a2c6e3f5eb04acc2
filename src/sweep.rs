//! Deletes what has expired.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgPool;

use crate::connection::{Connection, Database};
use crate::error::{Error, sqlstate, timed_out};

/// Deletes expired records, and turns those under a tombstone into one. Forgets the messages of an
/// [`Inbox`](crate::Inbox) whose retention is over.
///
/// In batches, each its own short transaction, beside as many other sweepers as there are replicas.
/// It never touches a live record or a claim. An expired record that no sweeper has reached counts
/// as absent; so nothing depends on it but the table's size.
///
/// # Examples
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) {
/// use tower_idempotency::Sweeper;
///
/// let sweeper = Sweeper::new(pool);
/// let shutdown = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
/// tokio::spawn(async move { sweeper.run(shutdown).await });
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Sweeper {
    database: Database,
    batch: u32,
    interval: Duration,
}

/// What a sweep has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Records deleted.
    pub deleted: u64,
    /// Records turned into tombstones.
    pub tombstoned: u64,
    /// Messages of an [`Inbox`](crate::Inbox) forgotten.
    pub messages: u64,
}

impl Sweeper {
    /// A sweeper for the records in this database.
    pub fn new(pool: PgPool) -> Self {
        Self { database: Database::new(pool), batch: BATCH, interval: INTERVAL }
    }

    /// Records a batch. Defaults to 1,000: some milliseconds of locks.
    pub fn batch(mut self, records: u32) -> Self {
        self.batch = records.max(1);
        self
    }

    /// The pause between two sweeps. Defaults to a minute.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// As on the [layer](crate::IdempotencyLayer::unnamed_statements).
    pub fn unnamed_statements(mut self) -> Self {
        self.database.named_statements = false;
        self
    }

    /// Sweeps all that has expired by now, batch by batch.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the schema is missing. Batches that are done stay done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses at most the batch under way.
    pub async fn run_once(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        loop {
            let batch = self.sweep_once().await?;
            swept.deleted += batch.deleted;
            swept.tombstoned += batch.tombstoned;
            swept.messages += batch.messages;
            if !self.is_full(batch) {
                return Ok(swept);
            }
        }
    }

    /// Whether there may be more.
    fn is_full(&self, swept: Swept) -> bool {
        (swept.deleted + swept.tombstoned).max(swept.messages) >= u64::from(self.batch)
    }

    /// Sweeps one batch of records, and one of an inbox's messages.
    ///
    /// # Errors
    ///
    /// As [`run_once`](Self::run_once).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses at most this batch.
    pub async fn sweep_once(&self) -> Result<Swept, Error> {
        let batch = tokio::time::timeout(BATCH_TIMEOUT, self.batch_of());
        let swept = batch.await.unwrap_or_else(|_| Err(timed_out("waiting for the end of a batch")));
        swept.map_err(|error| Error::database("sweeping expired records", error))
    }

    async fn batch_of(&self) -> Result<Swept, sqlx::Error> {
        let mut connection = Connection::acquire(&self.database, None).await?;
        connection.begin(&self.database).await?;
        let row = sqlx::query(include_str!("sql/sweep.sql"))
            .persistent(self.database.named_statements)
            .bind(i64::from(self.batch))
            .fetch_one(connection.start())
            .await;
        let row = connection.done(row)?;
        connection.commit().await?;
        let count = |name| row.try_get::<i64, _>(name).map(|count| u64::try_from(count).unwrap_or(0));
        let messages = self.messages(connection).await?;
        Ok(Swept { deleted: count("deleted")?, tombstoned: count("tombstoned")?, messages })
    }

    async fn messages(&self, mut connection: Connection) -> Result<u64, sqlx::Error> {
        connection.begin(&self.database).await?;
        let deleted = sqlx::query_scalar::<_, i64>(include_str!("sql/inbox_sweep.sql"))
            .persistent(self.database.named_statements)
            .bind(i64::from(self.batch))
            .fetch_one(connection.start())
            .await;
        match connection.done(deleted) {
            Ok(deleted) => {
                connection.commit().await?;
                Ok(u64::try_from(deleted).unwrap_or(0))
            }
            // Without a right to the table: a service that has no inbox.
            Err(error) if sqlstate(&error).as_deref() == Some("42501") => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Sweeps now and after each interval, until `shutdown` is ready. A failed sweep is logged and
    /// tried again; the batch under way at shutdown is finished.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            loop {
                match self.sweep_once().await {
                    Ok(batch) if self.is_full(batch) => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "a sweep failed; it is tried again"
                        );
                        break;
                    }
                }
                // Between two batches of a long sweep: is it time to stop?
                tokio::select! {
                    biased;
                    () = &mut shutdown => return,
                    () = std::future::ready(()) => {}
                }
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(self.interval) => {}
            }
        }
    }
}

const BATCH: u32 = 1_000;
const INTERVAL: Duration = Duration::from_secs(60);

/// A batch takes some milliseconds, unless somebody has locked the table, or the network swallows
/// packets; a stop waits for it.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
