//! Delivers what is committed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPool;

use super::backoff::Backoff;
use super::publisher::{AnyPublisher, Publisher};
use super::run::run;
use super::session;
use super::worker::Worker;
use crate::connection::Database;
use crate::error::Error;

/// Delivers the events of the outbox to a [`Publisher`].
///
/// - At least once: an event is deleted after the broker has acknowledged it. It comes twice when the
///   acknowledgement, or the process, is lost in between.
/// - In order per aggregate, also with many relays side by side: an aggregate is leased to one relay
///   at a time. Of several deliveries of one event, the first one is in order.
/// - An aggregate that fails, or is slow, holds up no other one. It is tried again with a
///   [backoff](Self::backoff); an event that is given up becomes a [dead
///   letter](super::DeadLetters), and the aggregate goes on with the next.
/// - An event is not missed because its transaction took long to commit.
/// - No transaction is open while something is published.
///
/// As many relays as there are replicas can run on one database. One that is killed while it
/// [runs](Self::run) is succeeded at the next look of another one: the server tells that its session
/// is gone. Where that cannot be told, since a machine has vanished from the network for example, it
/// is succeeded when its [lease](Self::lease) ends.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::outbox::{Publisher, Relay};
///
/// # async fn example(pool: sqlx::PgPool, publisher: impl Publisher) {
/// let relay = Relay::new(pool, publisher);
/// let shutdown = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
/// let relay = tokio::spawn(async move { relay.run(shutdown).await });
/// // .. serve; then wait until what is in hand is delivered:
/// relay.await.unwrap();
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Relay(Arc<Config>);

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) database: Database,
    pub(crate) publisher: Arc<dyn AnyPublisher>,
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
    pub(crate) lease: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) max_attempts: u32,
    pub(crate) has_session: bool,
}

/// What a round of a relay has done, in events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relayed {
    /// Acknowledged, and deleted.
    pub published: u64,
    /// Not acknowledged, to be tried again.
    pub failed: u64,
    /// Given up.
    pub dead: u64,
}

impl Relay {
    /// A relay of the outbox in this database, which has been [migrated](crate::migrate).
    ///
    /// It takes a connection of the pool for one statement at a time, and none while it publishes.
    /// While it [runs](Self::run) it has a session beside the pool, too, [unless](Self::without_session)
    /// it must not. It must not behind a transaction-pooling proxy, of any version: set
    /// [`unnamed_statements`](Self::unnamed_statements) there.
    pub fn new(pool: PgPool, publisher: impl Publisher) -> Self {
        Self(Arc::new(Config {
            database: Database::new(pool),
            publisher: Arc::new(publisher),
            concurrency: CONCURRENCY,
            batch: BATCH,
            lease: LEASE,
            publish_timeout: PUBLISH_TIMEOUT,
            poll_interval: POLL_INTERVAL,
            backoff: Backoff::default(),
            max_attempts: MAX_ATTEMPTS,
            has_session: true,
        }))
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// How many aggregates are published side by side. Defaults to 64: enough to hide a broker's
    /// round trip. One makes the relay publish one event at a time.
    pub fn concurrency(self, aggregates: usize) -> Self {
        self.set(|config| config.concurrency = aggregates.clamp(1, MOST))
    }

    /// How many events of one aggregate are read at once. Defaults to 100.
    pub fn batch(self, events: usize) -> Self {
        self.set(|config| config.batch = events.clamp(1, MOST))
    }

    /// For how long an aggregate is this relay's, unless it renews: how long its successor waits when
    /// it is gone and the server cannot tell. Defaults to 10 seconds; at least 100 milliseconds. It
    /// need not cover a slow publish, since a relay that lives renews its leases.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|config| config.lease = lease.max(SHORTEST_LEASE))
    }

    /// How long one event may take. Defaults to 30 seconds; after that it is tried again, for as long as
    /// it takes: a broker that does not answer is [unavailable](super::PublishError::unavailable).
    pub fn publish_timeout(self, timeout: Duration) -> Self {
        self.set(|config| config.publish_timeout = timeout)
    }

    /// The longest pause between two looks at an idle outbox. Defaults to a second. A busy one, and
    /// one in whose process something was committed, is looked at sooner.
    pub fn poll_interval(self, interval: Duration) -> Self {
        self.set(|config| config.poll_interval = interval.max(Duration::from_millis(1)))
    }

    /// When a failed event is tried again. Defaults to [`Backoff::default`].
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.set(|config| config.backoff = backoff)
    }

    /// How often an event may fail before it is given up. Defaults to 25, which takes about 70
    /// minutes with the default backoff. An [unavailable](super::PublishError::unavailable) broker, or
    /// one that does not answer in time, does not count.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.set(|config| config.max_attempts = attempts.max(1))
    }

    /// As on the [layer](crate::IdempotencyLayer::unnamed_statements), but for every
    /// transaction-pooling proxy, old or new: a relay's statements have no names, and only a
    /// transaction keeps the two halves of one together. It implies
    /// [`without_session`](Self::without_session).
    pub fn unnamed_statements(self) -> Self {
        self.set(|config| config.database.named_statements = false).without_session()
    }

    /// Without the session by which others see that this relay lives: where connections are few, or
    /// a proxy has none to give. When it is killed, its successor waits for the end of the
    /// [lease](Self::lease).
    ///
    /// The session is one connection more, made as the pool makes its own, and idle. An advisory lock
    /// is held in it for as long as the relay runs. A relay that loses it publishes nothing more of
    /// what it has in hand, until it has another one and knows what is still its own. Where none is to
    /// be had, it goes on without one.
    ///
    /// Behind a transaction-pooling proxy the session must be off, also behind one that knows named
    /// statements, such as PgBouncer 1.21 and later: its lock would stay on a backend that others
    /// share. [`unnamed_statements`](Self::unnamed_statements), which a relay needs there in any case,
    /// implies that.
    pub fn without_session(self) -> Self {
        self.set(|config| config.has_session = false)
    }

    /// One round: takes as many aggregates as are ready, and publishes up to a batch of each.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the schema is missing. What was acknowledged and could
    /// not be deleted is published again when the lease has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops publishing. What was in hand comes again when the lease has ended.
    pub async fn run_once(&self) -> Result<Relayed, Error> {
        Worker::new(Arc::clone(&self.0), session::none())
            .round()
            .await
            .map_err(|error| Error::database("relaying events", error))
    }

    /// Delivers until `shutdown` is ready; then finishes the events that are being published, gives
    /// the rest back to other relays, and returns.
    ///
    /// A database that cannot be reached is logged, and tried again.
    ///
    /// # Cancel safety
    ///
    /// As [`run_once`](Self::run_once).
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        run(Arc::clone(&self.0), shutdown).await;
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("concurrency", &self.0.concurrency)
            .field("batch", &self.0.batch)
            .field("lease", &self.0.lease)
            .field("backoff", &self.0.backoff)
            .finish_non_exhaustive()
    }
}

const CONCURRENCY: usize = 64;
const BATCH: usize = 100;
const LEASE: Duration = Duration::from_secs(10);

/// A renewal, three times in a lease, must reach the database in time.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const MAX_ATTEMPTS: u32 = 25;

/// Of aggregates, and of events of one: beyond it a statement is too large to be quick.
const MOST: usize = 10_000;
