//! The rule by which a delivery is known to be a provider's.

use std::time::Duration;

use http::StatusCode;
use http::request::Parts;

use super::refusal::Refusal;
use crate::fingerprint::Fingerprint;
use crate::retention::Retention;

/// Who sends webhooks, and how their deliveries are told from forgeries.
///
/// The crate has those of [GitHub](super::GitHub), [Stripe](super::Stripe),
/// [Standard Webhooks](super::StandardWebhooks), [Slack](super::Slack) and
/// [Shopify](super::Shopify). For any other write one: read headers with [`single`](super::single),
/// timestamps with [`unix_seconds`](super::unix_seconds) and [`fresh`](super::fresh), and leave the
/// comparison to [`HmacSha256Keys`](super::HmacSha256Keys) or [`Ed25519Keys`](super::Ed25519Keys).
///
/// # Examples
///
/// A provider that signs `timestamp.body` with a shared secret, and names the delivery in the body:
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::webhook::{
///     ConfigError, HmacSha256Keys, Provider, Refusal, Secret, Unverified, Verified, fresh, hex, single,
///     unix_seconds,
/// };
///
/// struct Acme(HmacSha256Keys);
///
/// impl Acme {
///     fn new(secret: impl Into<Secret>) -> Result<Self, ConfigError> {
///         Ok(Self(HmacSha256Keys::new([secret])?))
///     }
/// }
///
/// impl Provider for Acme {
///     fn name(&self) -> &str {
///         "acme"
///     }
///
///     fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
///         // 1. What the headers say, once each.
///         let signature = single(&delivery.parts.headers, "acme-signature")?;
///         let signature = hex(signature).ok_or(Refusal::HeaderMalformed)?;
///         let timestamp = single(&delivery.parts.headers, "acme-timestamp")?;
///         let seconds = unix_seconds(timestamp)?;
///         fresh(seconds, delivery.now, Duration::from_secs(300))?;
///         // 2. The signature, over the bytes as they came.
///         self.0.verify(&[timestamp.as_bytes(), b".", delivery.body], &[signature])?;
///         // 3. Only now is the body worth reading.
///         #[derive(serde::Deserialize)]
///         struct Event {
///             event_id: String,
///         }
///         let event: Event = serde_json::from_slice(delivery.body).map_err(|_| Refusal::IdMissing)?;
///         Ok(Verified::new(event.event_id).at(seconds))
///     }
/// }
/// # assert!(Acme::new("").is_err());
/// # use axum::{Router, routing::post};
/// # use tower_idempotency::webhook::WebhookLayer;
/// # async fn on_event() {}
/// # fn app(pool: sqlx::PgPool) -> Result<Router, ConfigError> {
/// let acme = WebhookLayer::new(pool, Acme::new("a shared secret")?);
/// let app = Router::new().route("/webhooks/acme", post(on_event).route_layer(acme));
/// # Ok(app)
/// # }
/// ```
///
/// One that signs with a key of its own, as Discord does. Nothing in the service can then forge a
/// delivery, and nothing in it is secret:
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::webhook::{
///     Ed25519Keys, Provider, Refusal, Unverified, Verified, fresh, hex, single, unix_seconds,
/// };
///
/// struct Signed(Ed25519Keys);
///
/// impl Provider for Signed {
///     fn name(&self) -> &str {
///         "signed"
///     }
///
///     fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
///         let headers = &delivery.parts.headers;
///         let signature = hex(single(headers, "x-signature-ed25519")?).ok_or(Refusal::HeaderMalformed)?;
///         let timestamp = single(headers, "x-signature-timestamp")?;
///         let seconds = unix_seconds(timestamp)?;
///         fresh(seconds, delivery.now, Duration::from_secs(300))?;
///         self.0.verify(&[timestamp.as_bytes(), delivery.body], &[signature])?;
///         // The sender names no delivery: the body is its own name.
///         Ok(Verified::by_body(delivery.body).at(seconds))
///     }
/// }
/// ```
pub trait Provider: Send + Sync + 'static {
    /// The tenant of its deliveries: 1 to 64 visible ASCII characters without a `/`.
    fn name(&self) -> &str;

    /// Whether the delivery is the provider's, and what it is called.
    ///
    /// # Errors
    ///
    /// The first reason against it. It goes to the telemetry, never to the sender.
    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal>;

    /// Refuses what the headers alone are enough to refuse, so that nobody without a signature can
    /// make the service read a large body. [`verify`](Self::verify) checks them again.
    ///
    /// Defaults to accepting all.
    ///
    /// # Errors
    ///
    /// As [`verify`](Self::verify).
    fn precheck(&self, parts: &Parts, now: i64) -> Result<(), Refusal> {
        let _ = (parts, now);
        Ok(())
    }

    /// The largest body that it sends, in bytes. Defaults to 1 MiB.
    fn body_limit(&self) -> usize {
        1 << 20
    }

    /// How long a delivery can come again. Defaults to 7 days.
    fn retention(&self) -> Retention {
        Retention::days(7)
    }

    /// The rule by which two deliveries of one id are the same. Defaults to
    /// [`Fingerprint::normalized`]: one id with two bodies is refused, because one of them would be
    /// lost. A provider whose id is signed, and whose body changes between attempts, says
    /// [`by_id`].
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::normalized()
    }

    /// The answer to a duplicate of a delivery in flight, with which the provider tries again
    /// later. Defaults to 503: to some senders a 4xx means "never again".
    fn busy_status(&self) -> StatusCode {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// A delivery that may be anybody's.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Unverified<'a> {
    /// Method, path, headers, and the extensions that layers outside have set.
    pub parts: &'a Parts,
    /// The body, byte by byte as it came.
    pub body: &'a [u8],
    /// The time, in seconds since 1970.
    pub now: i64,
}

impl<'a> Unverified<'a> {
    /// For tests of a provider of your own.
    pub const fn new(parts: &'a Parts, body: &'a [u8], now: i64) -> Self {
        Self { parts, body, now }
    }
}

/// A delivery that is the provider's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub(super) id: String,
    pub(super) timestamp: Option<i64>,
}

impl Verified {
    /// With the name that the provider gives it, which is the same on every attempt.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), timestamp: None }
    }

    /// With the hash of its body for a name, where the provider gives it none, or none that is
    /// signed.
    pub fn by_body(body: &[u8]) -> Self {
        Self::new(super::body_hash(body))
    }

    /// With the time that the provider has signed.
    #[must_use]
    pub const fn at(mut self, timestamp: i64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }
}

/// For providers whose delivery id is signed: one id is one delivery, whatever else has changed.
pub fn by_id() -> Fingerprint {
    Fingerprint::from_fn(|_, _| "by id")
}

/// How far a signed timestamp may be from the service's clock: five minutes, which is what Stripe,
/// Slack and the libraries of Standard Webhooks take.
pub(super) const TOLERANCE: Duration = Duration::from_secs(300);
