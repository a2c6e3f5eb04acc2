//! One database connection, from begin to commit.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgTransactionManager as Manager, Postgres};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr, Transaction};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::{sqlstate, timed_out};

/// Where connections come from, and how they are used.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) pool: PgPool,
    /// Statements keep their names on the connection. Off for old transaction-pooling proxies.
    pub(crate) named_statements: bool,
    pub(crate) acquire_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) liveness_interval: Duration,
    pub(crate) isolation: Isolation,
}

/// How much of other transactions a handler can see.
///
/// The claim is right at every level. At the stricter ones the server ends a transaction that has
/// met a conflicting one, and the handler must answer that with [`Settlement::Rerun`] to be run
/// again; see [`Settlement::is_rerun`].
///
/// [`Settlement::Rerun`]: crate::Settlement::Rerun
/// [`Settlement::is_rerun`]: crate::Settlement::is_rerun
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Each statement sees what is committed when it begins.
    #[default]
    ReadCommitted,
    /// All statements see what was committed when the claim was made.
    RepeatableRead,
    /// As if transactions ran one after the other.
    Serializable,
}

impl Isolation {
    const fn as_sql(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read committed",
            Self::RepeatableRead => "repeatable read",
            Self::Serializable => "serializable",
        }
    }
}

impl Database {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self {
            pool,
            named_statements: true,
            acquire_timeout: ACQUIRE_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            liveness_interval: LIVENESS_INTERVAL,
            isolation: Isolation::default(),
        }
    }

    /// Begin and the transaction's own settings, in one round trip.
    fn begin_statement(&self) -> SqlStr {
        // Rounded up: a little is not nothing, which turns a setting off.
        let millis = |d: Duration| i32::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let mut sql = format!(
            "begin isolation level {}; set local idle_in_transaction_session_timeout = {}",
            self.isolation.as_sql(),
            millis(self.idle_timeout)
        );
        if !self.liveness_interval.is_zero() {
            let interval = millis(self.liveness_interval);
            sql.push_str(&format!("; set local client_connection_check_interval = {interval}"));
        }
        AssertSqlSafe(sql).into_sql_str()
    }
}

enum Inner {
    Pooled(PoolConnection<Postgres>),
    /// From outside, for tests of handlers.
    Given(Transaction<'static, Postgres>),
    /// Moved out, as it is dropped.
    Gone,
}

/// A connection that is never given back to its pool in doubt.
///
/// Each of our own exchanges with the server is bracketed by [`start`](Self::start) and
/// [`done`](Self::done). A connection that is dropped in between, or after an error that is not the
/// server's answer, is closed: the pool's next borrower must not find it inside a transaction.
pub(crate) struct Connection {
    inner: Inner,
    in_doubt: bool,
    /// The server does not have the statements any more that were prepared on it.
    is_stale: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Waits for a connection of the pool, for a bounded time.
    pub(crate) async fn acquire(
        database: &Database,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Self, sqlx::Error> {
        let acquired = tokio::time::timeout(database.acquire_timeout, database.pool.acquire()).await;
        let pooled = acquired.unwrap_or_else(|_| Err(timed_out("waiting for a connection of the pool")))?;
        Ok(Self { inner: Inner::Pooled(pooled), in_doubt: false, is_stale: false, permit })
    }

    pub(crate) fn given(transaction: Transaction<'static, Postgres>) -> Self {
        Self { inner: Inner::Given(transaction), in_doubt: false, is_stale: false, permit: None }
    }

    /// The connection for one exchange with the server. [`done`](Self::done) must follow.
    pub(crate) fn start(&mut self) -> &mut PgConnection {
        self.in_doubt = true;
        &mut *self
    }

    /// Ends the exchange. An answer of the server leaves the connection usable, anything else not.
    pub(crate) fn done<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.in_doubt = match &result {
            Ok(_) | Err(sqlx::Error::RowNotFound) => false,
            Err(sqlx::Error::Database(error)) => {
                // 08: connection; 57P: the server ends it; 25P03: idle for too long.
                let code = error.code().unwrap_or_default();
                code.starts_with("08") || code.starts_with("57P") || code == "25P03"
            }
            Err(_) => true,
        };
        if let Err(error) = &result {
            // A statement's name is unknown to the server, or its plan does not fit the table any more.
            self.is_stale |= matches!(sqlstate(error).as_deref(), Some("26000" | "0A000"));
        }
        result
    }

    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Begins a transaction with the settings that free the key when its owner is gone, in bounded
    /// time.
    pub(crate) async fn begin(&mut self, database: &Database) -> Result<(), sqlx::Error> {
        let statement = database.begin_statement();
        // After an error in doubt, whatever it is: the first of the statements may have succeeded.
        let begun = tokio::time::timeout(BEGIN_TIMEOUT, Manager::begin(self.start(), Some(statement)));
        begun.await.unwrap_or_else(|_| Err(timed_out("waiting for the beginning of a transaction")))?;
        self.done(Ok(()))
    }

    /// How many transactions are open, one in another: 1 is the claim's own.
    pub(crate) fn depth(&self) -> usize {
        Manager::get_transaction_depth(self)
    }

    /// Ends the transaction and makes its effects durable.
    ///
    /// `Ok` says nothing where the transaction was aborted before: the caller's last statement
    /// must have succeeded in it.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let committed = Manager::commit(self.start()).await;
        self.done(committed)
    }

    /// Undoes everything, savepoints included, for a bounded time. A connection that does not
    /// answer is closed, and the server rolls back when it notices.
    pub(crate) async fn rollback(mut self) -> Option<Self> {
        let counted = self.depth();
        let undo = async {
            while self.depth() > 0 {
                let undone = Manager::rollback(self.start()).await;
                self.done(undone)?;
            }
            if counted == 0 {
                // A nested begin that was dropped midway has left its ROLLBACK in the buffer.
                let flushed = sqlx::Connection::ping(self.start()).await;
                self.done(flushed)?;
            }
            Ok::<(), sqlx::Error>(())
        };
        match tokio::time::timeout(ROLLBACK_TIMEOUT, undo).await {
            Ok(Ok(())) => Some(self),
            Ok(Err(error)) => {
                tracing::debug!(%error, "rolling back failed; the connection is closed");
                self.in_doubt = true;
                None
            }
            Err(_) => {
                tracing::debug!("rolling back took too long; the connection is closed");
                self.in_doubt = true;
                None
            }
        }
    }

    /// Closes the connection, keeping its place in the queue for the next one.
    pub(crate) fn close(mut self) -> Option<OwnedSemaphorePermit> {
        self.in_doubt = true;
        self.permit.take()
    }
}

impl Deref for Connection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.inner {
            Inner::Pooled(connection) => connection,
            Inner::Given(transaction) => transaction,
            Inner::Gone => unreachable!("BUG: a connection is used after it was dropped"),
        }
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.inner {
            Inner::Pooled(connection) => connection,
            Inner::Given(transaction) => transaction,
            Inner::Gone => unreachable!("BUG: a connection is used after it was dropped"),
        }
    }
}

impl Drop for Connection {
    /// A transaction that is open is undone on a task, for a bounded time as everywhere. The pool
    /// alone would wait for the end of a statement that nobody waits for any more, and the key
    /// would stay taken until then.
    fn drop(&mut self) {
        let Inner::Pooled(mut connection) = std::mem::replace(&mut self.inner, Inner::Gone) else { return };
        if self.in_doubt || self.is_stale {
            connection.close_on_drop();
        } else if Manager::get_transaction_depth(&connection) > 0
            && let Ok(runtime) = Handle::try_current()
        {
            // In doubt until it is undone: a task that never runs closes the connection.
            let inner = Inner::Pooled(connection);
            let permit = self.permit.take();
            let open = Self { inner, in_doubt: true, is_stale: false, permit };
            runtime.spawn(async move { drop(open.rollback().await) });
        }
    }
}

/// A request that waits longer than this for a connection is told to come back: its client's own
/// timeout is near, and a queue that grows helps nobody.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than an execution may take (60 s by default), so that it only ever ends a transaction
/// whose service is gone: a network that swallows packets gives no other sign.
const IDLE_TIMEOUT: Duration = Duration::from_secs(65);

/// A backend that runs a statement or waits for a lock does not notice that its client is gone,
/// unless it looks. Two seconds bound the time for which such a key stays taken.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(2);

/// A BEGIN takes microseconds, unless the network swallows packets.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A ROLLBACK takes microseconds, unless a statement that nobody waits for any more is running.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);
