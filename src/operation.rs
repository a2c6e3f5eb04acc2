//! The same claim without HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::PgPool;

use crate::claim::{self, Claim, Record, Verdict, claim};
use crate::connection::{Connection, Database};
use crate::detach::Detach;
use crate::error::{Error, claim_failed};
use crate::execute::after_commit;
use crate::fingerprint::Digest;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::record::{LARGEST_RESPONSE, Stored};
use crate::rejection::RejectionKind;
use crate::retention::{Retention, interval};
use crate::scope::{Scope, Tenant, TenantValue, Unresolved, checked_operation};
use crate::settle::{Committed, Settled, commit};
use crate::tx::{Lent, Taken, Tx, TxHandle};

/// A business operation that is not behind HTTP: a job, a consumer of messages, an agent's tool.
///
/// The same claim on the same table as the [layer](crate::IdempotencyLayer): effects and result
/// commit together, and a second run with the same key gets the first one's result.
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::{Error, Operation};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let payout = Operation::new(&pool, "payouts.create").tenant("acme");
/// let paid = payout
///     .run("payout-2026-07", &("acme", 1250), async |mut tx| {
///         let id: i64 = sqlx::query_scalar("insert into payout (amount) values ($1) returning id")
///             .bind(1250)
///             .fetch_one(&mut *tx)
///             .await?;
///         Ok::<_, Box<dyn std::error::Error>>(id)
///     })
///     .await?;
/// println!("payout {}, executed now: {}", paid.value(), paid.is_executed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Operation {
    database: Database,
    name: String,
    tenant: Result<String, String>,
    retention: Retention,
    tombstone: Option<Duration>,
}

/// The result of an [`Operation`], and whether it was made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran<T> {
    /// Executed by this call.
    Executed(T),
    /// Executed before; this is the recorded result.
    Replayed(T),
}

impl<T> Ran<T> {
    /// The result.
    pub const fn value(&self) -> &T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }

    /// The result itself.
    pub fn into_value(self) -> T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }

    /// Whether this call has executed the operation.
    pub const fn is_executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }
}

impl Operation {
    /// An operation of this name, with its records in this database.
    ///
    /// # Panics
    ///
    /// If the name is empty, over 255 bytes, or has a control character.
    #[track_caller]
    pub fn new(pool: &PgPool, name: impl Into<String>) -> Self {
        Self {
            database: Database::new(pool.clone()),
            name: checked_operation(name.into()),
            tenant: Ok(String::new()),
            retention: Retention::default(),
            tombstone: None,
        }
    }

    /// Whose keys they are. Defaults to the single tenant's.
    ///
    /// A tenant that is `None`, empty, or longer than 255 bytes makes every run an error.
    pub fn tenant(mut self, tenant: impl TenantValue) -> Self {
        self.tenant = Tenant::check(tenant).map_err(|unresolved| match unresolved {
            Unresolved::Misconfigured(what) => what,
            Unresolved::None | Unresolved::Refused(_) => {
                "the tenant of an operation must not be empty".to_owned()
            }
        });
        self
    }

    /// As on the [layer](crate::IdempotencyLayer::retention).
    pub fn retention(mut self, retention: impl Into<Retention>) -> Self {
        self.retention = retention.into();
        self
    }

    /// As on the [layer](crate::IdempotencyLayer::tombstone).
    pub fn tombstone(mut self, duration: Duration) -> Self {
        self.tombstone = (!duration.is_zero()).then_some(duration);
        self
    }

    /// For how long the transaction may be idle before the server ends it: while the closure waits
    /// for something outside of the database, or when this process has gone without a word.
    /// Defaults to 65 seconds.
    pub fn idle_timeout(mut self, duration: Duration) -> Self {
        self.database.idle_timeout = duration;
        self
    }

    /// As on the [layer](crate::IdempotencyLayer::unnamed_statements).
    pub fn unnamed_statements(mut self) -> Self {
        self.database.named_statements = false;
        self
    }

    /// Runs the closure once for this key, in the transaction that holds the claim, and records
    /// what it returns.
    ///
    /// `input` is what the operation is asked to do; its JSON is the fingerprint. The result is
    /// stored as JSON. The [`Tx`] must be dropped when the closure returns.
    ///
    /// # Errors
    ///
    /// The closure's own error: its effects are undone, nothing is recorded, and the next run
    /// executes. Or one of ours, through `From`: the key is [in flight](Error::is_in_flight), was
    /// [used with another input](Error::is_key_reused), or the database is
    /// [unavailable](Error::is_unavailable). A result of more than 64 MiB cannot be stored, and its
    /// effects are undone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while the closure runs undoes its effects and frees the key. Once it has
    /// returned, the result is recorded even if nobody waits any more.
    pub async fn run<I, T, E, F, Fut>(&self, key: &str, input: &I, execute: F) -> Result<Ran<T>, E>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        E: From<Error>,
        F: FnOnce(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let request = self.request(key, input)?;
        let connection = match self.claim(&request).await? {
            Claim::Won(connection) => connection,
            Claim::Settled(record) => return Ok(Ran::Replayed(replayed(record, &request)?)),
            Claim::InFlight => return Err(Error::refused(RejectionKind::InFlight).into()),
        };
        let lent = Lent(TxHandle::home(connection, &Arc::default()));
        lent.0.identify(Idempotency::new(request.scope.clone()));
        let tx = lent.0.lend().await.map_err(|rejection| Error::refused(rejection.kind()))?;
        let value = match execute(tx).await {
            Ok(value) => value,
            Err(error) => {
                if let Taken::Home(connection, _) = lent.0.take() {
                    connection.rollback().await;
                }
                return Err(error);
            }
        };
        let body = serde_json::to_vec(&value)
            .map_err(|error| Error::value("the result of the operation cannot be stored as JSON", error))?;
        match self.settle(&lent.0, request.clone(), body).await {
            Settled::Answer(..) => Ok(Ran::Executed(value)),
            Settled::Duplicate(record) => Ok(Ran::Replayed(replayed(record, &request)?)),
            Settled::Refused(kind) => Err(Error::refused(kind).into()),
            Settled::Rerun(_) => Err(Error::refused(RejectionKind::RerunsExhausted).into()),
        }
    }

    fn request<I: Serialize + ?Sized>(&self, key: &str, input: &I) -> Result<claim::Request, Error> {
        let tenant = self.tenant.clone().map_err(Error::misconfigured)?;
        let key = IdempotencyKey::new(key)
            .map_err(|error| Error::value("the key of the operation is malformed", error))?;
        let input = serde_json::to_vec(input)
            .map_err(|error| Error::value("the input of the operation cannot be written as JSON", error))?;
        let scope = Scope { tenant, operation: self.name.clone(), key };
        let mut request =
            claim::Request::new(scope, Digest::of_json_input(&input), self.retention.interval());
        request.tombstone = self.tombstone.map(interval);
        Ok(request)
    }

    async fn claim(&self, request: &claim::Request) -> Result<Claim, Error> {
        let (database, request) = (self.database.clone(), request.clone());
        let claimed = Detach::new(async move {
            let connection = Connection::acquire(&database, None).await?;
            claim(&database, connection, &request).await
        });
        claimed.await.map_err(|error| Error::refused(claim_failed(&error)))
    }

    async fn settle(&self, handle: &TxHandle, request: claim::Request, body: Vec<u8>) -> Settled {
        let Taken::Home(connection, hooks) = handle.take() else {
            tracing::error!("the operation returned while its `Tx` was still held; its effects are undone");
            return Settled::Refused(RejectionKind::TransactionKept);
        };
        if connection.depth() != 1 {
            tracing::error!(
                "the operation left a savepoint open, or dropped a nested `begin()` before it finished"
            );
            connection.rollback().await;
            return Settled::Refused(RejectionKind::TransactionAborted);
        }
        if body.len() > LARGEST_RESPONSE {
            tracing::error!(
                "the operation's result has more than {LARGEST_RESPONSE} bytes; its effects are undone"
            );
            connection.rollback().await;
            return Settled::Refused(RejectionKind::ResponseUnstorable);
        }
        let database = self.database.clone();
        let stored = Stored::of_value(Bytes::from(body));
        let committed = Detach::new(async move {
            let committed = commit(&database, &request, connection, "completed", &stored).await;
            if matches!(committed, Committed::Yes) {
                after_commit(hooks);
            }
            committed
        });
        match committed.await {
            Committed::Yes => Settled::Answer(axum::response::Response::default(), crate::Outcome::Completed),
            Committed::Other(settled) => settled,
        }
    }
}

fn replayed<T: DeserializeOwned>(record: Record, request: &claim::Request) -> Result<T, Error> {
    if !request.fingerprint.matches(&record.fingerprint) {
        return Err(Error::refused(RejectionKind::KeyReused));
    }
    match (record.verdict, record.body) {
        (Verdict::Tombstone, _) => Err(Error::refused(RejectionKind::ResponseExpired)),
        (Verdict::Completed, Some(body)) => serde_json::from_slice(&body).map_err(|error| {
            Error::value("the recorded result does not have the type that is asked for", error)
        }),
        (Verdict::Completed, None) => Err(Error::refused(RejectionKind::ResponseNotKept)),
        _ => Err(Error::refused(RejectionKind::RecordUnreadable)),
    }
}
