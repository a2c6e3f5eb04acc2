//! Events that were given up.

use std::time::{Duration, SystemTime};

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Row as _, query};
use uuid::Uuid;

use super::event::Event;
use super::lane::{event, exchange};
use crate::connection::Database;
use crate::error::Error;
use crate::retention::interval;

/// The events that a [`Relay`](super::Relay) has given up: to look at, to send again, to forget.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::outbox::DeadLetters;
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), tower_idempotency::Error> {
/// let letters = DeadLetters::new(pool);
/// for letter in letters.list(100).await? {
///     println!("{}: {}", letter.event.id(), letter.error);
/// }
/// // The consumer was repaired:
/// letters.requeue_all().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetters(Database);

/// An event that was given up.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The event, as it was published.
    pub event: Event,
    /// How often it was attempted.
    pub attempts: u32,
    /// What the last attempt came to.
    pub error: String,
    /// When it was given up, by the database's clock.
    pub died_at: SystemTime,
}

impl DeadLetters {
    /// The dead letters in this database.
    pub fn new(pool: PgPool) -> Self {
        Self(Database::new(pool))
    }

    /// As on the [layer](crate::IdempotencyLayer::unnamed_statements).
    #[must_use]
    pub fn unnamed_statements(mut self) -> Self {
        self.0.named_statements = false;
        self
    }

    /// The oldest ones, up to `limit`.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the schema is missing.
    pub async fn list(&self, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        self.page(limit, None).await
    }

    /// The next ones after this one, up to `limit`.
    ///
    /// None, if it is not there any more.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    pub async fn list_after(&self, letter: Uuid, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        self.page(limit, Some(letter)).await
    }

    async fn page(&self, limit: u32, after: Option<Uuid>) -> Result<Vec<DeadLetter>, Error> {
        let statement = query(include_str!("../sql/outbox_dead_list.sql")).bind(i64::from(limit)).bind(after);
        let listed = async {
            let rows = exchange(&self.0, "listing dead letters", statement).await?;
            rows.iter().map(letter).collect::<Result<_, sqlx::Error>>()
        };
        listed.await.map_err(|error| Error::database("listing dead letters", error))
    }

    /// Sends these again. Each keeps its id, begins anew with its attempts, and stands behind what
    /// waits for its aggregate by now: the order that it had is lost. How many were there?
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list); nothing is requeued then.
    pub async fn requeue(&self, letters: &[Uuid]) -> Result<u64, Error> {
        let count = self.requeue_some(Some(letters), i64::MAX).await?;
        super::nudge();
        Ok(count)
    }

    /// Sends all again, the oldest first. How many were there?
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list); in batches, of which some may be done.
    pub async fn requeue_all(&self) -> Result<u64, Error> {
        let mut all = 0;
        loop {
            let count = self.requeue_some(None, BATCH).await?;
            super::nudge();
            all += count;
            if count < BATCH.unsigned_abs() {
                return Ok(all);
            }
        }
    }

    async fn requeue_some(&self, letters: Option<&[Uuid]>, limit: i64) -> Result<u64, Error> {
        let statement = query(include_str!("../sql/outbox_requeue.sql")).bind(letters).bind(limit);
        let rows = exchange(&self.0, "requeueing dead letters", statement).await;
        count(rows).map_err(|error| Error::database("requeueing dead letters", error))
    }

    /// Forgets these. How many were there?
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list); nothing is forgotten then.
    pub async fn purge(&self, letters: &[Uuid]) -> Result<u64, Error> {
        self.purge_some(Some(letters), Duration::ZERO, i64::MAX).await
    }

    /// Forgets those that were given up longer ago than this. How many were there?
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list); in batches, of which some may be done.
    pub async fn purge_older_than(&self, age: Duration) -> Result<u64, Error> {
        let mut all = 0;
        loop {
            let count = self.purge_some(None, age, BATCH).await?;
            all += count;
            if count < BATCH.unsigned_abs() {
                return Ok(all);
            }
        }
    }

    async fn purge_some(&self, letters: Option<&[Uuid]>, age: Duration, limit: i64) -> Result<u64, Error> {
        let statement =
            query(include_str!("../sql/outbox_purge.sql")).bind(letters).bind(interval(age)).bind(limit);
        let rows = exchange(&self.0, "purging dead letters", statement).await;
        count(rows).map_err(|error| Error::database("purging dead letters", error))
    }
}

fn count(rows: Result<Vec<PgRow>, sqlx::Error>) -> Result<u64, sqlx::Error> {
    rows.map(|rows| u64::try_from(rows.len()).unwrap_or(u64::MAX))
}

fn letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    let died_at = Duration::try_from_secs_f64(row.try_get("died_at")?).unwrap_or_default();
    Ok(DeadLetter {
        event: event(row)?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
        error: row.try_get("error")?,
        died_at: SystemTime::UNIX_EPOCH + died_at,
    })
}

/// A short transaction each.
const BATCH: i64 = 1_000;
