//! How long, and how much.

use std::time::Duration;

use super::{Config, IdempotencyLayer};
use crate::in_flight::Capacity;
use crate::record::LARGEST_RESPONSE;
use crate::retention::Retention;

/// # How long
impl IdempotencyLayer {
    /// How long the response can be replayed, from when it was recorded. Defaults to 24 hours, as
    /// the payment providers keep theirs.
    pub fn retention(self, retention: impl Into<Retention>) -> Self {
        let retention = retention.into();
        self.set(|config| config.retention = retention)
    }

    /// For how long after the retention a late retry is still refused, with 410, instead of being
    /// executed. Defaults to not at all: the row stays that long.
    pub fn tombstone(self, duration: Duration) -> Self {
        self.set(|config| config.tombstone = (!duration.is_zero()).then_some(duration))
    }

    /// How long a duplicate of a request in flight waits for its response. It holds no connection
    /// while it waits. Defaults to not at all, a 409 with `Retry-After`: a waiting request costs
    /// memory and a place at the load balancer.
    pub fn wait(self, duration: Duration) -> Self {
        self.set(|config| config.wait = duration)
    }

    /// How long an execution may take, whether or not its client still waits. After it the effects
    /// are undone and the answer is 503. Defaults to 60 seconds, longer than most proxies wait.
    pub fn execution_timeout(self, duration: Duration) -> Self {
        self.set(|config| {
            config.execution_timeout = duration;
            config.set_idle_timeout();
        })
    }

    /// How often a request is executed again after [`Settlement::Rerun`](crate::Settlement::Rerun).
    /// Defaults to 3.
    pub fn max_reruns(self, reruns: u32) -> Self {
        self.set(|config| config.max_reruns = reruns)
    }
}

/// # Limits
impl IdempotencyLayer {
    /// How many requests may hold a connection at once, shared by all clones made after this call.
    /// Others wait for [`acquire_timeout`](Self::acquire_timeout), then get 503.
    ///
    /// Defaults to the pool's size minus one (at least 1), shared by all clones: a handler that
    /// asks the pool for a connection of its own then finds one.
    pub fn max_in_flight(self, requests: usize) -> Self {
        self.set(|config| config.capacity = Capacity::new(requests, config.database.acquire_timeout))
    }

    /// How long a request waits for a place among those in flight, and then for a connection of
    /// the pool. Defaults to 5 seconds.
    pub fn acquire_timeout(self, duration: Duration) -> Self {
        self.set(|config| {
            config.database.acquire_timeout = duration;
            config.capacity = config.capacity.clone().with_wait(duration);
        })
    }

    /// The largest request body, in bytes, for the layer and for the handler. Defaults to what
    /// applies to the handler anyway: [`DefaultBodyLimit`](axum::extract::DefaultBodyLimit), 2 MiB
    /// unless set.
    pub fn body_limit(self, bytes: usize) -> Self {
        self.set(|config| config.body_limit = Some(bytes))
    }

    /// The largest response body that is stored, in bytes. A larger one is sent, but not stored: a
    /// retry gets 410. Defaults to 1 MiB, because each is a value in a row.
    ///
    /// # Panics
    ///
    /// If it is over 64 MiB, which is too much for a value in a row.
    #[track_caller]
    pub fn response_limit(self, bytes: usize) -> Self {
        assert!(bytes <= LARGEST_RESPONSE, "bodies of at most {LARGEST_RESPONSE} bytes can be stored");
        self.set(|config| config.responses.limit = bytes)
    }

    /// For how long a response's body is collected, while the transaction is open. A slower one is
    /// sent, but not stored. Defaults to 5 seconds.
    pub fn response_timeout(self, duration: Duration) -> Self {
        self.set(|config| {
            config.responses.time = duration;
            config.set_idle_timeout();
        })
    }

    /// Keeps replayed records in this process, in at most this many bytes of memory, so that the next
    /// retry of the same key needs neither a connection nor the database. Shared by all clones made
    /// after this call.
    ///
    /// A settled record does not change before it expires, and its fingerprint is compared as always.
    /// But for five minutes at most, a record can be answered from that is not in the database any more:
    /// one whose row was deleted by hand, or lost when a standby took over that did not have it, or that
    /// has expired by a clock of the database that was set forward, or while this machine was suspended.
    /// Another process then executes the key anew, and until the five minutes are over a client gets the
    /// old response from the one and the new response from the other.
    ///
    /// A response of more than about a hundredth of the cache may not be kept.
    ///
    /// Defaults to none: a replay costs one read, and most keys are never retried.
    pub fn replay_cache(self, bytes: usize) -> Self {
        self.set(|config| config.settled = config.settled.clone().with_records(bytes))
    }

    /// How often a running statement looks whether its service is still there. Defaults to 2
    /// seconds, the time for which a killed service's key can stay taken. Zero leaves the server's
    /// own setting, for platforms that cannot look (PostgreSQL 14 or later on Linux, macOS, BSD
    /// can).
    pub fn liveness_interval(self, duration: Duration) -> Self {
        self.set(|config| config.database.liveness_interval = duration)
    }

    /// Sends statements of the layer without a name, inside of explicit transactions, for
    /// transaction-pooling proxies that mix up named ones (PgBouncer before 1.21). Each then costs
    /// one more round trip. Defaults to named statements.
    pub fn unnamed_statements(self) -> Self {
        self.set(|config| config.database.named_statements = false)
    }
}

impl Config {
    /// The transaction may be idle from its first statement to the last frame of the response.
    fn set_idle_timeout(&mut self) {
        let body = self.responses.time.max(SHORTEST_MARGIN);
        self.database.idle_timeout = self.execution_timeout.saturating_add(body);
    }
}

/// For the record to be written.
const SHORTEST_MARGIN: Duration = Duration::from_secs(5);
