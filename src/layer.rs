//! All configuration: who and what here, how long and how much in `limits.rs`, what is answered in
//! `answers.rs`.

mod answers;
#[cfg(feature = "webhook")]
mod deliveries;
mod limits;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::response::Response;
use http::request::Parts;
use http::{HeaderName, Method};
use sqlx::postgres::PgPool;
use tower_layer::Layer;

use crate::connection::{Database, Isolation};
use crate::detach::Executions;
use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::in_flight::{Capacity, InFlight};
use crate::key::{KeySource, Place};
use crate::migrate;
use crate::record::HeaderRules;
use crate::rejection::Answers;
use crate::replay::{IDEMPOTENT_REPLAYED, Resolver};
use crate::retention::Retention;
use crate::scope::{Tenant, checked_operation};
use crate::service::IdempotencyService;
use crate::settle::ResponseRules;
use crate::settled::SettledKeys;
use crate::settlement::Settlement;

/// Makes the routes it is added to safe to retry.
///
/// It is its own builder: cheap to clone, configured by setters that each return it changed. One
/// layer serves many routes; what differs between them is set on clones.
///
/// Add it with `route_layer`. `Router::layer` would also meet unknown paths, and `.layer` on a
/// method router would answer a keyless PUT on a POST route with 400 instead of 405.
///
/// # Examples
///
/// ```no_run
/// use axum::{Router, routing::post};
/// use tower_idempotency::{IdempotencyLayer, Retention, Tenant};
///
/// #[derive(Clone)]
/// struct User { account: String }
///
/// # async fn pay() {}
/// # async fn refund() {}
/// # fn app(pool: sqlx::PgPool) -> Router {
/// let idempotent = IdempotencyLayer::new(pool, Tenant::extension(|user: &User| user.account.clone()));
///
/// Router::new()
///     .route("/payments", post(pay).route_layer(idempotent.clone().operation("payments.create")))
///     .route(
///         "/refunds",
///         post(refund).route_layer(idempotent.operation("refunds.create").retention(Retention::days(45))),
///     )
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct IdempotencyLayer(Arc<Config>);

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) database: Database,
    pub(crate) methods: Vec<Method>,
    pub(crate) key: KeySource,
    pub(crate) tenant: Tenant,
    pub(crate) operation: Option<String>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) retention: Retention,
    pub(crate) tombstone: Option<Duration>,
    pub(crate) wait: Duration,
    pub(crate) execution_timeout: Duration,
    pub(crate) max_reruns: u32,
    pub(crate) body_limit: Option<usize>,
    pub(crate) responses: ResponseRules,
    pub(crate) settle_with: Option<SettleWith>,
    pub(crate) resolver: Option<Resolver>,
    pub(crate) replayed_header: HeaderName,
    pub(crate) answers: Arc<Answers>,
    pub(crate) capacity: Capacity,
    pub(crate) in_flight: InFlight,
    pub(crate) settled: SettledKeys,
    pub(crate) executions: Executions,
    pub(crate) warned: Arc<AtomicBool>,
}

type SettleWith = Arc<dyn Fn(&Response) -> Settlement + Send + Sync>;

/// # Who and what
impl IdempotencyLayer {
    /// A layer that keeps its records in this database, which has been [migrated](crate::migrate).
    pub fn new(pool: PgPool, tenant: Tenant) -> Self {
        let size = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
        let database = Database::new(pool);
        Self(Arc::new(Config {
            capacity: Capacity::new(size.saturating_sub(1), database.acquire_timeout),
            database,
            methods: PROTECTED.to_vec(),
            key: KeySource::default(),
            tenant,
            operation: None,
            fingerprint: Fingerprint::default(),
            retention: Retention::default(),
            tombstone: None,
            wait: Duration::ZERO,
            execution_timeout: EXECUTION_TIMEOUT,
            max_reruns: MAX_RERUNS,
            body_limit: None,
            responses: ResponseRules {
                limit: RESPONSE_LIMIT,
                time: RESPONSE_TIMEOUT,
                headers: HeaderRules::default(),
            },
            settle_with: None,
            resolver: None,
            replayed_header: IDEMPOTENT_REPLAYED,
            answers: Arc::default(),
            in_flight: InFlight::default(),
            settled: SettledKeys::new(),
            executions: Executions::default(),
            warned: Arc::default(),
        }))
    }

    /// The isolation level of the handler's transaction, whatever the database's default is.
    /// Defaults to read committed, at which nothing has to be run again.
    pub fn isolation(self, isolation: Isolation) -> Self {
        self.set(|config| config.database.isolation = isolation)
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Names what is being done. The same key on two operations is two keys.
    ///
    /// Defaults to the method and the matched path, which works, but ties every key's meaning to
    /// the spelling of a route: renaming one forgets what was done.
    ///
    /// # Panics
    ///
    /// If the name is empty, over 255 bytes, or has a control character.
    #[track_caller]
    pub fn operation(self, name: impl Into<String>) -> Self {
        let name = checked_operation(name.into());
        self.set(|config| config.operation = Some(name))
    }

    /// Narrows the methods that the layer acts on. Defaults to POST, PUT, PATCH and DELETE: a PUT
    /// whose handler sends an e-mail is no more idempotent than a POST.
    ///
    /// # Panics
    ///
    /// If a method is not one of these four.
    #[track_caller]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<Method> = methods.into_iter().collect();
        let known = methods.iter().all(|method| PROTECTED.contains(method));
        assert!(known, "the layer acts on POST, PUT, PATCH and DELETE only, not on {methods:?}");
        self.set(|config| config.methods = methods)
    }

    /// Lets requests without a key pass, unprotected. A broken key is refused all the same.
    ///
    /// The handler is written once: its [`Tx`](crate::Tx) then begins when it is extracted, and is
    /// committed or rolled back by the response's status as with a key.
    ///
    /// Defaults to a required key, because a client that forgets it is the one that pays twice.
    pub fn optional(self) -> Self {
        self.set(|config| config.key.optional = true)
    }

    /// Reads the key from another header, such as `PayPal-Request-Id`. Defaults to
    /// [`Idempotency-Key`](crate::IDEMPOTENCY_KEY).
    pub fn key_header(self, name: HeaderName) -> Self {
        self.set(|config| config.key.place = Place::Header(name))
    }

    /// Derives the key from the request. `None` is a missing key.
    pub fn key_from_fn(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.set(|config| config.key.place = Place::Function(Arc::new(key)))
    }

    /// Takes only keys that this function accepts: UUIDs, for example, or nothing that looks like a
    /// time. Defaults to all well-formed ones.
    pub fn key_policy(self, policy: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.set(|config| config.key.policy = Some(Arc::new(policy)))
    }

    /// The rule by which two requests are the same. Defaults to
    /// [`Fingerprint::normalized`], so that a client library that orders members differently does
    /// not get a 422.
    pub fn fingerprint(self, fingerprint: Fingerprint) -> Self {
        self.set(|config| config.fingerprint = fingerprint)
    }
}

/// # Running
impl IdempotencyLayer {
    /// Says what is wrong with the database, if anything. For the start of the service.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, the schema is missing or of another version, the role
    /// may not write, or the server is a standby. The message says what to do.
    pub async fn check(&self) -> Result<(), Error> {
        migrate::check(&self.0.database.pool).await
    }

    /// Waits until no execution of this layer or its clones is left, those included whose clients
    /// have hung up. For the end of the service, after the server has stopped taking requests.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn drain(&self) {
        self.0.executions.drain().await;
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.0))
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("tenant", &self.0.tenant)
            .field("operation", &self.0.operation)
            .field("retention", &self.0.retention)
            .finish_non_exhaustive()
    }
}

/// Closed: what is not named here passes, CONNECT included. Deliberately not "all but the safe
/// ones": an unknown method may be a tunnel or a query.
const PROTECTED: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

const EXECUTION_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RERUNS: u32 = 3;
const RESPONSE_LIMIT: usize = 1 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
