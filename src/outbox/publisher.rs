//! Where events go.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::event::Event;

/// Hands events to a broker.
///
/// A closure that takes an [`Event`] is one:
///
/// ```
/// use tower_idempotency::outbox::{Event, Relay};
///
/// # async fn send(event: Event) -> Result<(), std::io::Error> { Ok(()) }
/// # fn example(pool: sqlx::PgPool) {
/// let relay = Relay::new(pool, async |event: Event| Ok(send(event).await?));
/// # }
/// ```
///
/// A [`Relay`](super::Relay) publishes the events of one aggregate one after the other, each after
/// the acknowledgement of the one before, and those of many aggregates side by side. An event comes
/// again, with the same id, when its acknowledgement was lost.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one event, and returns when the broker has acknowledged it: what it returns `Ok`
    /// for is deleted from the outbox.
    ///
    /// # Errors
    ///
    /// What went wrong, and what to do about it. Any error converts into a [`PublishError`] that is
    /// tried again.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when it takes longer than the relay's
    /// [`publish_timeout`](super::Relay::publish_timeout), which counts as
    /// [unavailable](PublishError::unavailable). A panic counts as an error.
    fn publish(&self, event: Event) -> impl Future<Output = Result<(), PublishError>> + Send;
}

impl<F, Fut> Publisher for F
where
    F: Fn(Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), PublishError>> + Send,
{
    fn publish(&self, event: Event) -> impl Future<Output = Result<(), PublishError>> + Send {
        self(event)
    }
}

/// The same for a relay that does not name its publisher's type.
pub(crate) trait AnyPublisher: Send + Sync {
    fn publish_boxed(&self, event: Event) -> Publishing<'_>;
}

pub(crate) type Publishing<'p> = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send + 'p>>;

impl<P: Publisher> AnyPublisher for P {
    fn publish_boxed(&self, event: Event) -> Publishing<'_> {
        // Called in the future, too: a closure may panic before it returns one.
        Box::pin(async move { self.publish(event).await })
    }
}

/// Why an event was not published, and what becomes of it.
///
/// By `?` from any error: it is tried again after a backoff, and given up after
/// [`max_attempts`](super::Relay::max_attempts).
pub struct PublishError {
    pub(crate) verdict: Verdict,
    pub(crate) retry_after: Option<Duration>,
    source: Box<dyn StdError + Send + Sync>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try again, a bounded number of times.
    Failed,
    /// Never try again.
    Rejected,
    /// Try again for as long as it takes.
    Unavailable,
}

impl PublishError {
    /// It may be the event: tried again, and given up after a bounded number of attempts.
    pub fn failed(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Failed, retry_after: None, source: source.into() }
    }

    /// It is the event, and no attempt will help: a dead letter at once.
    pub fn rejected(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Rejected, retry_after: None, source: source.into() }
    }

    /// It is the broker, not the event: tried again for as long as it takes. It does not count as an
    /// attempt at the event, so that no outage makes dead letters.
    pub fn unavailable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { verdict: Verdict::Unavailable, retry_after: None, source: source.into() }
    }

    /// Not before this time is over, as the other side has asked for. Without it the relay's backoff
    /// says when; the longer of the two counts.
    #[must_use]
    pub const fn retry_after(mut self, duration: Duration) -> Self {
        self.retry_after = Some(duration);
        self
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for PublishError {
    fn from(error: E) -> Self {
        Self::failed(error)
    }
}

/// With its causes, for the table of dead letters.
impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)?;
        let mut source = self.source.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishError")
            .field("verdict", &self.verdict)
            .field("retry_after", &self.retry_after)
            .field("source", &self.source)
            .finish()
    }
}

/// Keeps what is published, for tests. Clones share it.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::outbox::{MemoryPublisher, Relay};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), tower_idempotency::Error> {
/// let published = MemoryPublisher::default();
/// Relay::new(pool, published.clone()).run_once().await?;
/// assert_eq!(published.events()[0].event_type(), "payment.created");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryPublisher(Arc<Mutex<Vec<Event>>>);

impl MemoryPublisher {
    /// What was published so far, duplicates included.
    pub fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    /// What was published so far, which is forgotten here.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher for MemoryPublisher {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        self.lock().push(event);
        Ok(())
    }
}
