//! What a handler can know of its request's idempotency.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::downstream::DownstreamKey;
use crate::key::IdempotencyKey;
use crate::rejection::{Rejection, RejectionKind};
use crate::scope::Scope;
use crate::tx::TxHandle;

/// The key, tenant and operation of the request, as an extractor and a request extension.
///
/// As `Option<Idempotency>` behind an optional key, or on methods that the layer does not act on.
///
/// # Examples
///
/// ```
/// use http::HeaderValue;
/// use tower_idempotency::Idempotency;
///
/// async fn create_payment(idempotency: Idempotency) {
///     // The same on every attempt at this payment, for the payment provider's own header.
///     let key = HeaderValue::from(idempotency.downstream_key("charge"));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Idempotency(Arc<Scope>);

impl Idempotency {
    pub(crate) fn new(scope: Scope) -> Self {
        Self(Arc::new(scope))
    }

    /// The client's key. Not for logs: whoever has it can ask for the response.
    pub fn key(&self) -> &IdempotencyKey {
        &self.0.key
    }

    /// Whose key it is. Empty for [`Tenant::single`](crate::Tenant::single).
    pub fn tenant(&self) -> &str {
        &self.0.tenant
    }

    /// What is being done.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// A key for one call to another service, the same on every attempt at this request. `step`
    /// names the call among those that this operation makes.
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        DownstreamKey::of_step(&self.0, step)
    }
}

impl<S: Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Rejection> {
        if let Some(idempotency) = parts.extensions.get::<Self>() {
            return Ok(idempotency.clone());
        }
        if parts.extensions.get::<TxHandle>().is_some() {
            return Err(Rejection::bare(RejectionKind::KeyMissing));
        }
        tracing::error!(
            "`Idempotency` was extracted on a route without an idempotency layer; add `.route_layer(IdempotencyLayer::new(..))` to the route"
        );
        Err(Rejection::bare(RejectionKind::ExtensionMissing))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Idempotency {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
