//! Messages, each with one effect.
//!
//! Brokers deliver at least once. An [`Inbox`] remembers, in the transaction that does the work, which
//! messages were had: a message and its effect are committed together, and a redelivery finds that
//! it has been had.

mod process;
mod receive;

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgPool};
use uuid::Uuid;

use crate::connection::Database;
use crate::error::Error;
use crate::retention::Retention;

pub use process::Processed;

/// The messages that one subscriber has had.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::Inbox;
/// use tower_idempotency::inbox::Processed;
///
/// # struct Message { id: String }
/// # impl Message { async fn ack(self) {} }
/// # async fn example(pool: sqlx::PgPool, message: Message) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::new("billing");
/// let processed = inbox
///     .process(&pool, &message.id, async |mut tx| {
///         sqlx::query("insert into invoice default values").execute(&mut *tx).await?;
///         Ok::<_, Box<dyn std::error::Error>>(())
///     })
///     .await?;
/// match processed {
///     Processed::First(()) | Processed::Duplicate => message.ack().await,
///     // Not acknowledged: the redelivery finds out.
///     Processed::Unknown => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Inbox {
    subscriber: String,
    retention: Retention,
    named_statements: bool,
    wait: Duration,
}

/// Whether a message is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// It is new: do the work, in this transaction.
    First,
    /// It has been had, by a transaction that is committed, or by this one. Acknowledge it.
    Duplicate,
}

impl Received {
    /// Whether it is new.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First)
    }
}

/// Where a message stands in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advanced {
    /// Newer than all that were applied: apply it, in this transaction.
    Newer,
    /// Not newer than one that was applied. It came late, or again.
    Stale,
}

impl Advanced {
    /// Whether it is newer.
    pub const fn is_newer(self) -> bool {
        matches!(self, Self::Newer)
    }
}

impl Inbox {
    /// The inbox of this subscriber: a name for what is done with the messages. Two subscribers
    /// never hide each other's message.
    ///
    /// # Panics
    ///
    /// If the name is empty, over 255 bytes, or has a control character.
    #[track_caller]
    pub fn new(subscriber: impl Into<String>) -> Self {
        let subscriber = subscriber.into();
        let is_sound = (1..=255).contains(&subscriber.len()) && !subscriber.contains(char::is_control);
        assert!(is_sound, "a subscriber has 1 to 255 bytes and no control characters, not {subscriber:?}");
        Self { subscriber, retention: RETENTION, named_statements: true, wait: WAIT }
    }

    /// For how long a message is remembered. It must cover every way in which it can come again: the
    /// broker's redelivery, a redrive of its dead letters, a replay of the stream. Defaults to 14
    /// days, the longest for which SQS keeps a message.
    ///
    /// A [`Sweeper`](crate::Sweeper) deletes what is older; a message that is older counts as new.
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.retention = retention.into();
        self
    }

    /// How long [`process`](Self::process) waits for a transaction that has the message and is still
    /// open. Defaults to 30 seconds.
    pub fn wait(mut self, duration: Duration) -> Self {
        self.wait = duration;
        self
    }

    /// As on the [layer](crate::IdempotencyLayer::unnamed_statements).
    pub fn unnamed_statements(mut self) -> Self {
        self.named_statements = false;
        self
    }

    /// Receives a message in this transaction, which must do its work, too. Roll it back, and the
    /// message was never received.
    ///
    /// If another transaction has received it and is open, this waits for it: a duplicate is one of
    /// something that is committed. The work is done once at READ COMMITTED; a stricter isolation
    /// level refuses the second of two at once with 40001, and its redelivery is a duplicate.
    ///
    /// Two transactions that receive the same messages in different orders may wait for each other:
    /// for many at once there is [`receive_batch`](Self::receive_batch).
    ///
    /// # Errors
    ///
    /// If the id is empty, over 1024 bytes, or has U+0000, which leaves the transaction as it was; or
    /// if the database fails, which aborts it.
    ///
    /// # Cancel safety
    ///
    /// As with any statement, the transaction must be rolled back after the future was dropped.
    pub async fn receive(&self, connection: &mut PgConnection, message_id: &str) -> Result<Received, Error> {
        check(message_id)?;
        let received = self.try_receive(connection, message_id, Uuid::new_v4()).await;
        received.map_err(|error| Error::database("receiving a message", error))
    }

    /// Receives many messages in this transaction, and says of each, in their order, whether it is
    /// new. Of an id that is twice in the list, the second is a duplicate.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive). Either all are received or none.
    ///
    /// # Cancel safety
    ///
    /// As [`receive`](Self::receive).
    pub async fn receive_batch<I>(
        &self,
        connection: &mut PgConnection,
        message_ids: I,
    ) -> Result<Vec<Received>, Error>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let ids: Vec<I::Item> = message_ids.into_iter().collect();
        let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
        ids.iter().try_for_each(|id| check(id))?;
        let batch = self.try_receive_batch(connection, &ids).await;
        let mut first = batch.map_err(|error| Error::database("receiving messages", error))?;
        // Taken out: the second of two is a duplicate.
        let received = |id| if first.remove(id) { Received::First } else { Received::Duplicate };
        Ok(ids.into_iter().map(received).collect())
    }

    /// Says whether a message is newer than all of its stream that were applied, and if so, notes in
    /// this transaction that it is applied now.
    ///
    /// For messages of which a late one must not overwrite what a newer one has set: the version is
    /// the sender's, and grows within the stream. Other transactions for the stream wait until this
    /// one has ended. A stream is one row, and stays.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive), with the stream's name in place of the id.
    ///
    /// # Cancel safety
    ///
    /// As [`receive`](Self::receive).
    pub async fn advance(
        &self,
        connection: &mut PgConnection,
        stream: &str,
        version: i64,
    ) -> Result<Advanced, Error> {
        check(stream)?;
        let newer = sqlx::query(include_str!("sql/inbox_advance.sql"))
            .persistent(self.named_statements)
            .bind(&self.subscriber)
            .bind(stream)
            .bind(version)
            .fetch_optional(connection)
            .await
            .map_err(|error| Error::database("advancing a stream", error))?;
        Ok(if newer.is_some() { Advanced::Newer } else { Advanced::Stale })
    }

    fn database(&self, pool: &PgPool) -> Database {
        let mut database = Database::new(pool.clone());
        database.named_statements = self.named_statements;
        database
    }
}

/// Refused here, and not by the table: an error there would abort the transaction.
fn check(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
        return Err(Error::misconfigured(
            "the id of a message, or the name of a stream, has 1 to 1024 bytes and no U+0000",
        ));
    }
    Ok(())
}

const RETENTION: Retention = Retention::days(14);
const WAIT: Duration = Duration::from_secs(30);

/// A B-tree entry takes about 2.7 kB at most, with the subscriber.
const LONGEST_NAME: usize = 1024;
