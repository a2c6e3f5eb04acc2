//! Where the transaction is at home.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::Transaction;
use sqlx::postgres::Postgres;
use tokio::sync::Notify;
use tracing::Instrument as _;

use super::Tx;
use crate::connection::{Connection, Database};
use crate::error;
use crate::idempotency::Idempotency;
use crate::in_flight::Capacity;
use crate::rejection::{Answers, Rejection, RejectionKind};

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

pub(super) struct Slot {
    inner: Mutex<Inner>,
    begun: Notify,
    lazy: Option<(Database, Capacity)>,
    answers: Arc<Answers>,
}

pub(super) struct Inner {
    pub(super) state: State,
    pub(super) hooks: Hooks,
    pub(super) identity: Option<Idempotency>,
}

/// What runs after the commit.
pub(crate) type Hooks = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

pub(super) enum State {
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
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
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

/// Ends the loan of a transaction however what it was lent to ends. Clones of the handle may live on, in
/// tasks and in response extensions; the transaction must not live on in them.
pub(crate) struct Lent(pub(crate) TxHandle);

impl Lent {
    /// After a handler that has not answered.
    pub(crate) async fn undo(&self) {
        match self.0.take() {
            Taken::Home(connection, _) => drop(connection.rollback().await),
            Taken::Kept => tracing::error!(
                "a `Tx` is still held after its handler has ended; the key is free when it is dropped"
            ),
            Taken::Unbegun => {}
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
