//! The handler's hold on the transaction.

mod handle;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::connection::Connection;
use crate::idempotency::Idempotency;
use crate::rejection::{Rejection, RejectionKind};

pub use handle::TxHandle;
pub(crate) use handle::{Hooks, Lent, Taken};
use handle::{Slot, State};

/// The transaction that holds the claim, lent to the handler.
///
/// Take it as an extractor, use it as a [`PgConnection`], and let it go out of scope. There is no
/// `commit`: whether the effects stay is decided by the response, which is recorded in this same
/// transaction. On drop it goes home to its [`TxHandle`].
///
/// It must be home when the handler has answered. A `Tx` that was moved into a spawned task or into
/// the response's body makes the answer a 500, and nothing is committed.
///
/// Behind an optional key, and on methods that the layer does not act on, the transaction begins
/// when it is extracted, and is committed or rolled back by the same rules.
///
/// A nested `begin()` is a savepoint: commit it or let it go before you answer. Do not drop the
/// future of a `begin()` before it is done, by a timeout or a `select!`: sqlx then ends the whole
/// transaction, and inside of another savepoint what it does is a COMMIT by hand. Neither becomes a
/// success; the answer is a 500 that advises against a retry.
///
/// # Panics
///
/// Dereferencing it mutably panics when the transaction is over: a nested `begin()` whose future
/// was dropped midway ends the whole transaction, and a write after it would stand alone.
///
/// # Examples
///
/// ```
/// use axum::http::StatusCode;
/// use tower_idempotency::Tx;
///
/// async fn create_order(mut tx: Tx) -> Result<StatusCode, StatusCode> {
///     sqlx::query("insert into orders default values")
///         .execute(&mut *tx)
///         .await
///         .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok(StatusCode::CREATED)
/// }
/// ```
pub struct Tx {
    connection: Option<Connection>,
    slot: Arc<Slot>,
}

impl Tx {
    /// Runs a future after the commit, on a task of its own: a nudge to a relay, a cache to
    /// invalidate. It does not run when the transaction is rolled back, and a process that dies in
    /// between never runs it.
    pub fn after_commit(&self, hook: impl Future<Output = ()> + Send + 'static) {
        self.slot.lock().hooks.push(Box::pin(hook));
    }

    /// Whose effects these are, where they are those of one key.
    pub(crate) fn identity(&self) -> Option<Idempotency> {
        self.slot.lock().identity.clone()
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("BUG: a Tx has its connection until it is dropped")
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        let connection = self.connection.as_mut().expect("BUG: a Tx has its connection until it is dropped");
        assert!(
            connection.is_in_transaction(),
            "the transaction is over: a nested `begin()` was dropped before it finished, which rolled everything back; a write now would stand alone"
        );
        connection
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let mut inner = self.slot.lock();
        if matches!(inner.state, State::Lent) {
            inner.state = State::Home(connection);
        } else {
            // Settled without it. The rollback starts as the connection goes.
            drop(inner);
            drop(connection);
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl<S: Sync> FromRequestParts<S> for Tx {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        match parts.extensions.get::<TxHandle>().cloned() {
            Some(handle) => handle.lend().await,
            None => {
                tracing::error!(
                    "`Tx` was extracted on a route without an idempotency layer; add `.route_layer(IdempotencyLayer::new(..))` to the route"
                );
                Err(Rejection::bare(RejectionKind::ExtensionMissing))
            }
        }
    }
}
