//! The handler's hold on the transaction.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use http::request::Parts;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{Connection as _, Transaction};
use tokio::sync::Notify;
use tracing::Instrument as _;

use crate::connection::{Connection, Database};
use crate::error;
use crate::idempotency::Idempotency;
use crate::in_flight::Capacity;
use crate::rejection::{Answers, Rejection, RejectionKind};

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

/// Where a [`Tx`] is lent from: a request extension, for services and middleware that are not axum
/// handlers, and for tests of handlers without a layer.
///
/// # Examples
///
/// A handler's test, which leaves nothing behind:
///
/// ```no_run
/// use axum::{Extension, Router, routing::post};
/// use tower_idempotency::{Tx, TxHandle};
///
/// # async fn create_order(tx: Tx) {}
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let handle = TxHandle::new(pool.begin().await?);
/// let app: Router = Router::new()
///     .route("/orders", post(create_order))
///     .layer(Extension(handle.clone()));
/// // .. send a request, then look at what the handler wrote:
/// let mut tx = handle.lend().await?;
/// let orders: i64 = sqlx::query_scalar("select count(*) from orders").fetch_one(&mut *tx).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TxHandle(Arc<Slot>);

struct Slot {
    inner: Mutex<Inner>,
    begun: Notify,
    lazy: Option<(Database, Capacity)>,
    answers: Arc<Answers>,
}

struct Inner {
    state: State,
    hooks: Hooks,
    identity: Option<Idempotency>,
}

/// What runs after the commit.
pub(crate) type Hooks = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

enum State {
    Unbegun,
    Beginning,
    Home(Connection),
    Lent,
    Settled,
}

/// What the layer finds when the handler has answered.
pub(crate) enum Taken {
    Unbegun,
    Home(Connection, Hooks),
    /// Somebody else still holds it.
    Kept,
}

impl TxHandle {
    /// Lends a transaction of your own, for tests of handlers. It is rolled back when the handle
    /// and all that came from it are dropped.
    pub fn new(transaction: Transaction<'static, Postgres>) -> Self {
        Self::home(Connection::given(transaction), &Arc::default())
    }

    pub(crate) fn home(connection: Connection, answers: &Arc<Answers>) -> Self {
        Self::with_state(State::Home(connection), None, answers)
    }

    /// Says whose effects these are.
    pub(crate) fn identify(&self, identity: Idempotency) {
        self.0.lock().identity = Some(identity);
    }

    /// Begins when it is first lent.
    pub(crate) fn lazy(database: Database, capacity: Capacity, answers: &Arc<Answers>) -> Self {
        Self::with_state(State::Unbegun, Some((database, capacity)), answers)
    }

    fn with_state(state: State, lazy: Option<(Database, Capacity)>, answers: &Arc<Answers>) -> Self {
        let inner = Mutex::new(Inner { state, hooks: Vec::new(), identity: None });
        Self(Arc::new(Slot { inner, begun: Notify::new(), lazy, answers: Arc::clone(answers) }))
    }

    /// Lends the transaction, one borrower at a time. It comes back when the [`Tx`] is dropped.
    ///
    /// # Errors
    ///
    /// If it is lent already, or settled; or, where it has not begun yet, if the database cannot be
    /// reached.
    ///
    /// # Cancel safety
    ///
    /// The transaction begins on a task of its own, so that dropping this future leaves no
    /// connection halfway into one.
    pub async fn lend(&self) -> Result<Tx, Rejection> {
        loop {
            let begun = self.0.begun.notified();
            tokio::pin!(begun);
            begun.as_mut().enable();
            match self.0.next() {
                Next::Lend(connection) => {
                    return Ok(Tx { connection: Some(connection), slot: Arc::clone(&self.0) });
                }
                Next::Begin(database, capacity) => {
                    let task = begin(Arc::clone(&self.0), database, capacity).in_current_span();
                    let kind = match tokio::spawn(task).await {
                        Ok(Ok(())) => continue,
                        Ok(Err(kind)) => kind,
                        Err(_) => RejectionKind::DatabaseUnavailable,
                    };
                    return Err(Rejection::new(kind, &self.0.answers));
                }
                Next::Wait => begun.await,
                Next::Refuse(why) => {
                    tracing::error!("the transaction cannot be lent: {why}");
                    return Err(Rejection::new(RejectionKind::TransactionUnavailable, &self.0.answers));
                }
            }
        }
    }

    /// Takes the transaction for settling. From here on nobody else can have it.
    pub(crate) fn take(&self) -> Taken {
        let mut inner = self.0.lock();
        match std::mem::replace(&mut inner.state, State::Settled) {
            State::Home(connection) => Taken::Home(connection, std::mem::take(&mut inner.hooks)),
            State::Lent => Taken::Kept,
            State::Unbegun | State::Beginning | State::Settled => Taken::Unbegun,
        }
    }
}

/// On a task: nobody can drop this halfway.
async fn begin(slot: Arc<Slot>, database: Database, capacity: Capacity) -> Result<(), RejectionKind> {
    let beginning = Beginning(slot);
    let begun = async {
        let permit = capacity.enter().await?;
        let begun = async {
            let mut connection = Connection::acquire(&database, Some(permit)).await?;
            connection.begin(&database).await.map(|()| connection)
        };
        begun.await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "beginning a transaction failed");
            error::refusal(&error)
        })
    }
    .await;
    let connection = begun?;
    let mut inner = beginning.0.lock();
    if matches!(inner.state, State::Beginning) {
        inner.state = State::Home(connection);
    } else {
        // Settled meanwhile: the transaction is not wanted any more.
        drop(inner);
        drop(connection);
    }
    Ok(())
}

/// Tells those who wait that it is over. It has not begun unless it was said, also after a panic: in
/// a callback of the pool, for example.
struct Beginning(Arc<Slot>);

impl Drop for Beginning {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if matches!(inner.state, State::Beginning) {
            inner.state = State::Unbegun;
        }
        drop(inner);
        self.0.begun.notify_waiters();
    }
}

enum Next {
    Lend(Connection),
    Begin(Database, Capacity),
    Wait,
    Refuse(&'static str),
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Next {
        let mut inner = self.lock();
        match (&inner.state, &self.lazy) {
            (State::Home(_), _) => match std::mem::replace(&mut inner.state, State::Lent) {
                State::Home(connection) => Next::Lend(connection),
                _ => Next::Wait,
            },
            (State::Unbegun, Some((database, capacity))) => {
                let next = Next::Begin(database.clone(), capacity.clone());
                inner.state = State::Beginning;
                next
            }
            (State::Beginning, _) => Next::Wait,
            (State::Lent, _) => Next::Refuse("it is lent already; extract it once, and pass `&mut Tx` on"),
            (State::Unbegun | State::Settled, _) => {
                Next::Refuse("it has been settled; it lives as long as the handler runs")
            }
        }
    }
}

impl fmt::Debug for TxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxHandle").finish_non_exhaustive()
    }
}
