//! The configuration of a route that takes deliveries.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use http::request::Parts;
use sqlx::postgres::PgPool;
use tower_layer::Layer;

use super::delivery::WebhookDelivery;
use super::provider::Provider;
use super::service::WebhookService;
use crate::IdempotencyLayer;
use crate::error::Error;
use crate::rejection::RejectionKind;
use crate::scope::Tenant;

/// Takes the deliveries of one provider: verified first, then claimed like any other key.
///
/// The body is read once, under the provider's limit, and the signature is checked over its bytes
/// before anything is parsed or stored. What is not the provider's gets a 401 that says nothing;
/// the [`Refusal`](super::Refusal) goes to the span, to the log, and into the response's extensions. What is, is
/// claimed: the provider (and the [endpoint](Self::endpoint)) is the tenant, the delivery's id is
/// the key. The handler takes a [`Tx`](crate::Tx), and the rest is as with an
/// [`IdempotencyLayer`]: effects and response commit together, and a redelivery gets the stored
/// 2xx.
///
/// What differs, since the other side is a machine that only reads the status:
///
/// - Only a 2xx is recorded. Whatever else a handler answers is undone and forgotten, so that the
///   provider's retry runs. A [`Settlement`](crate::Settlement) that the handler returns has the
///   last word.
/// - A duplicate of a delivery in flight gets the provider's
///   [busy status](Provider::busy_status), and no 409.
/// - A duplicate of a delivery that is done, but whose response is not kept, gets a 200 and no 410,
///   which makes some senders take the endpoint off their list.
/// - Any method but POST gets a 405: elsewhere, other methods pass unclaimed.
///
/// Add it with `route_layer`, with nothing outside that changes the body: a decompression layer
/// belongs inside, if anywhere. Nobody is known before the whole body is there, so a bound on
/// requests at once, and on the time that a body may take, belongs outside.
///
/// # Examples
///
/// ```no_run
/// use axum::{Router, body::Bytes, http::StatusCode, routing::post};
/// use tower_idempotency::{Tx, webhook::{GitHub, Stripe, WebhookLayer}};
///
/// async fn on_push(mut tx: Tx, body: Bytes) -> Result<StatusCode, StatusCode> {
///     sqlx::query("insert into push (payload) values ($1)")
///         .bind(&body[..])
///         .execute(&mut *tx)
///         .await
///         .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok(StatusCode::ACCEPTED)
/// }
/// # async fn on_payment() {}
///
/// # fn app(pool: sqlx::PgPool) -> Result<Router, Box<dyn std::error::Error>> {
/// let github = WebhookLayer::new(pool.clone(), GitHub::new([std::env::var("GITHUB_SECRET")?])?);
/// let stripe = WebhookLayer::new(pool, Stripe::new([std::env::var("STRIPE_SECRET")?])?);
///
/// let app = Router::new()
///     .route("/webhooks/github", post(on_push).route_layer(github.operation("webhooks.github")))
///     .route("/webhooks/stripe", post(on_payment).route_layer(stripe.operation("webhooks.stripe")));
/// # Ok(app)
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct WebhookLayer {
    idempotency: IdempotencyLayer,
    reception: Arc<Reception>,
}

/// How a delivery is received, up to the claim.
#[derive(Clone)]
pub(super) struct Reception {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) by_body: bool,
    endpoint: Endpoint,
    clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

#[derive(Clone)]
enum Endpoint {
    Only,
    Named(String),
    Function(Arc<EndpointFn>),
}

type EndpointFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl WebhookLayer {
    /// Takes deliveries of this provider, and keeps their records in this database, which has been
    /// [migrated](crate::migrate).
    ///
    /// # Panics
    ///
    /// If the provider's [name](Provider::name) is not of the form that it should have.
    #[track_caller]
    pub fn new(pool: PgPool, provider: impl Provider) -> Self {
        Self::sharing(IdempotencyLayer::new(pool, Tenant::single()), provider)
    }

    /// As [`new`](Self::new), with the database, the limits and the answers of another layer: both
    /// then count their requests in flight together, and [drain](IdempotencyLayer::drain) together.
    ///
    /// The other layer's methods, key, tenant, operation, fingerprint, retention, body limit and
    /// rules of settlement do not count here.
    ///
    /// # Panics
    ///
    /// If the provider's [name](Provider::name) is not of the form that it should have.
    #[track_caller]
    pub fn sharing(idempotency: IdempotencyLayer, provider: impl Provider) -> Self {
        let name = provider.name();
        let fits = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        assert!(fits, "a provider's name has 1 to {MAX_NAME} visible ASCII characters and no `/`: {name:?}");
        let idempotency = idempotency
            .for_deliveries(Tenant::extension(|delivery: &WebhookDelivery| delivery.tenant()), |parts| {
                parts.extensions.get().map(|delivery: &WebhookDelivery| delivery.key().to_owned())
            })
            .fingerprint(provider.fingerprint())
            .retention(provider.retention())
            .body_limit(provider.body_limit())
            .in_flight_status(provider.busy_status());
        let reception = Reception {
            provider: Arc::new(provider),
            by_body: false,
            endpoint: Endpoint::Only,
            clock: Arc::new(SystemTime::now),
        };
        Self { idempotency, reception: Arc::new(reception) }
    }

    fn set(mut self, change: impl FnOnce(&mut Reception)) -> Self {
        change(Arc::make_mut(&mut self.reception));
        self
    }

    /// Names what is being done. Defaults to `POST` and the matched path; name it, so that a
    /// renamed route does not run what the provider sends again.
    ///
    /// # Panics
    ///
    /// As [`IdempotencyLayer::operation`].
    #[track_caller]
    pub fn operation(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.idempotency(|layer| layer.operation(name))
    }

    /// Which of several endpoints at the same provider this is: the tenant is then the provider and
    /// the endpoint. For a provider that sends one event under one id to each of them, as Stripe
    /// does.
    ///
    /// # Panics
    ///
    /// If the name is empty, over 190 bytes, or has a control character.
    #[track_caller]
    pub fn endpoint(self, name: impl Into<String>) -> Self {
        let name = name.into();
        assert!(is_endpoint(&name), "an endpoint's name has 1 to {MAX_ENDPOINT} bytes: {name:?}");
        self.set(|reception| reception.endpoint = Endpoint::Named(name))
    }

    /// Reads the endpoint from the request: the customer in its path, for example. `None`, and a
    /// name that [`endpoint`](Self::endpoint) would not take, get a 403.
    ///
    /// No provider signs the address. If two endpoints have the same secret, whoever can send to one
    /// of them can have a delivery of the other taken a second time; let a [`Provider`] of your own
    /// choose the secret by the same part of the request.
    pub fn endpoint_from_fn(self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.set(|reception| reception.endpoint = Endpoint::Function(Arc::new(read)))
    }

    /// Tells deliveries apart by their bodies, not by their ids.
    ///
    /// For GitHub and Shopify, which do not sign the id: whoever gets hold of one delivery can
    /// otherwise send it again under ids of their own. What it costs: two deliveries that really
    /// have the same bytes are one. Most bodies name the moment or the object's version; a `ping`
    /// need not.
    ///
    /// A delivery can come again for as long as the secret is in use, so let the records stay:
    /// `.idempotency(|layer| layer.tombstone(..))`.
    pub fn by_body(self) -> Self {
        self.set(|reception| reception.by_body = true)
    }

    /// Changes anything else about how a delivery is claimed, recorded and answered: the retention,
    /// the execution's time limit, the fingerprint, the [busy
    /// status](IdempotencyLayer::in_flight_status).
    ///
    /// Key, tenant and methods belong to this layer; leave them. Keep the retention at no less than
    /// twice the provider's tolerance: a captured delivery is good for that long.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tower_idempotency::webhook::{GitHub, WebhookLayer};
    /// # fn layer(pool: sqlx::PgPool, github: GitHub) -> WebhookLayer {
    /// WebhookLayer::new(pool, github)
    ///     .by_body()
    ///     .idempotency(|layer| layer.tombstone(Duration::from_secs(365 * 86_400)))
    /// # }
    /// ```
    pub fn idempotency(mut self, change: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        self.idempotency = change(self.idempotency);
        self
    }

    /// Where the time comes from by which a timestamp is old or ahead. Defaults to the system's
    /// clock; tests set their own.
    pub fn clock(self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.set(|reception| reception.clock = Arc::new(clock))
    }

    /// As [`IdempotencyLayer::check`].
    ///
    /// # Errors
    ///
    /// As [`IdempotencyLayer::check`].
    pub async fn check(&self) -> Result<(), Error> {
        self.idempotency.check().await
    }

    /// As [`IdempotencyLayer::drain`].
    pub async fn drain(&self) {
        self.idempotency.drain().await;
    }
}

impl Reception {
    /// In seconds since 1970; before it, and so far from it that it does not matter, the nearest
    /// that there is.
    pub(super) fn now(&self) -> i64 {
        let seconds = |duration: std::time::Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        match (self.clock)().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => seconds(since),
            Err(before) => -seconds(before.duration()),
        }
    }

    /// `Err`: the request does not say which.
    pub(super) fn endpoint(&self, parts: &Parts) -> Result<Option<String>, RejectionKind> {
        match &self.endpoint {
            Endpoint::Only => Ok(None),
            Endpoint::Named(name) => Ok(Some(name.clone())),
            Endpoint::Function(read) => match read(parts) {
                Some(name) if is_endpoint(&name) => Ok(Some(name)),
                _ => Err(RejectionKind::TenantMissing),
            },
        }
    }
}

fn is_endpoint(name: &str) -> bool {
    (1..=MAX_ENDPOINT).contains(&name.len()) && !name.contains(char::is_control)
}

impl<S> Layer<S> for WebhookLayer {
    type Service = WebhookService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WebhookService::new(
            self.idempotency.layer(inner),
            self.idempotency.clone(),
            Arc::clone(&self.reception),
        )
    }
}

impl fmt::Debug for WebhookLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookLayer")
            .field("provider", &self.reception.provider.name())
            .field("idempotency", &self.idempotency)
            .finish_non_exhaustive()
    }
}

/// Provider, `/` and endpoint together are a tenant, which has at most 255 bytes.
const MAX_NAME: usize = 64;
const MAX_ENDPOINT: usize = 190;
