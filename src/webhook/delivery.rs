//! What a handler can know of a verified delivery.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::rejection::{Rejection, RejectionKind};

/// A delivery whose signature is right: an extractor, and a request extension.
///
/// # Examples
///
/// ```
/// use axum::body::Bytes;
/// use tower_idempotency::{Tx, webhook::WebhookDelivery};
///
/// async fn on_event(delivery: WebhookDelivery, tx: Tx, body: Bytes) {
///     tracing::info!(delivery = delivery.id(), "an event of {}", delivery.provider());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WebhookDelivery(Arc<Inner>);

struct Inner {
    provider: String,
    endpoint: Option<String>,
    id: String,
    key: String,
    timestamp: Option<i64>,
}

impl WebhookDelivery {
    pub(super) fn new(
        provider: &str,
        endpoint: Option<String>,
        id: String,
        key: String,
        timestamp: Option<i64>,
    ) -> Self {
        Self(Arc::new(Inner { provider: provider.to_owned(), endpoint, id, key, timestamp }))
    }

    /// Who sent it: the [name](super::Provider::name) of the provider.
    pub fn provider(&self) -> &str {
        &self.0.provider
    }

    /// To which of the service's [endpoints](super::WebhookLayer::endpoint).
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// The provider's name for it, the same on every attempt.
    ///
    /// Not signed by GitHub and Shopify: for looking it up at the provider, not for deciding
    /// anything.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// When this attempt was made, in seconds since 1970, where the provider signs it.
    pub fn timestamp(&self) -> Option<i64> {
        self.0.timestamp
    }

    pub(super) fn key(&self) -> &str {
        &self.0.key
    }

    pub(super) fn tenant(&self) -> String {
        match &self.0.endpoint {
            Some(endpoint) => format!("{}/{endpoint}", self.0.provider),
            None => self.0.provider.clone(),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("provider", &self.provider)
            .field("endpoint", &self.endpoint)
            .field("id", &self.id)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

impl<S: Sync> FromRequestParts<S> for WebhookDelivery {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!(
                "`WebhookDelivery` was extracted on a route without a webhook layer; add `.route_layer(WebhookLayer::new(..))` to the route"
            );
            Rejection::bare(RejectionKind::ExtensionMissing)
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for WebhookDelivery {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
