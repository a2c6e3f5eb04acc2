//! What a delivery meets before it is claimed, in order.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::response::{IntoResponse, Response};
use axum::{BoxError, RequestExt as _};
use bytes::Bytes;
use http::header::{ALLOW, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use tower_service::Service;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::delivery::WebhookDelivery;
use super::layer::Reception;
use super::provider::Unverified;
use super::refusal::Refusal;
use crate::key::IdempotencyKey;
use crate::rejection::{Rejection, RejectionKind};
use crate::service::{ResponseFuture, is_over_limit};
use crate::telemetry::{Outcome, finish, record};
use crate::{IdempotencyLayer, IdempotencyService};

/// The service that [`WebhookLayer`](super::WebhookLayer) makes.
#[derive(Clone)]
pub struct WebhookService<S> {
    inner: IdempotencyService<S>,
    idempotency: IdempotencyLayer,
    reception: Arc<Reception>,
}

impl<S> WebhookService<S> {
    pub(super) const fn new(
        inner: IdempotencyService<S>,
        idempotency: IdempotencyLayer,
        reception: Arc<Reception>,
    ) -> Self {
        Self { inner, idempotency, reception }
    }
}

impl<S, B> Service<Request<B>> for WebhookService<S>
where
    S: Service<Request<Body>, Response: IntoResponse, Error: Send, Future: Send> + Clone + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Service::<Request<Body>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is not ready, the original is: it goes with the request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (idempotency, reception) = (self.idempotency.clone(), Arc::clone(&self.reception));
        let request = request.map(Body::new);
        let span = tracing::info_span!(
            "webhook",
            provider = reception.provider.name(),
            endpoint = Empty,
            delivery = Empty,
            refusal = Empty,
            outcome = Empty
        );
        let response = async move {
            let request = match reception.receive(request).await {
                Ok(request) => request,
                Err(refused) => return Ok(refused.answer(&idempotency)),
            };
            let response = inner.call(request).await?;
            Ok(for_provider(response, &idempotency))
        };
        ResponseFuture(Box::pin(response.instrument(span)))
    }
}

/// A request that is not handed on.
enum Refused {
    Method,
    Unverified(Refusal),
    Rejected(RejectionKind),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Unverified(refusal)
    }
}

impl Reception {
    /// The verified delivery as a request: the same body, and who it is from as an extension.
    async fn receive(&self, mut request: Request<Body>) -> Result<Request<Body>, Refused> {
        // 1. Method.
        if request.method() != Method::POST {
            return Err(Refused::Method);
        }

        // 2. Headers: what has no signature is not worth its body.
        let now = self.now();
        let limit = self.provider.body_limit();
        DefaultBodyLimit::max(limit).apply(&mut request);
        let (parts, body) = request.into_parts();
        self.provider.precheck(&parts, now)?;

        // 3. Body, byte by byte as it came.
        let (parts, body) = Request::from_parts(parts, body).with_limited_body().into_parts();
        let body = body.collect().await.map_err(|error| {
            let over = is_over_limit(&error);
            Refused::Rejected(if over { RejectionKind::BodyTooLarge } else { RejectionKind::BodyIncomplete })
        })?;
        let body = body.to_bytes();

        // 4. Signature. Everything after it is the provider's.
        let verified = self.provider.verify(&Unverified { parts: &parts, body: &body, now })?;
        let key = if self.by_body { super::body_hash(&body) } else { verified.id.clone() };
        if IdempotencyKey::new(&key).is_err() {
            return Err(Refusal::IdMalformed.into());
        }
        let endpoint = self.endpoint(&parts).map_err(Refused::Rejected)?;

        Span::current().record("delivery", &verified.id);
        Span::current().record("endpoint", endpoint.as_deref());
        let delivery =
            WebhookDelivery::new(self.provider.name(), endpoint, verified.id, key, verified.timestamp);
        let mut request = Request::from_parts(parts, Body::from(body));
        request.extensions_mut().insert(delivery);
        Ok(request)
    }
}

impl Refused {
    fn answer(self, idempotency: &IdempotencyLayer) -> Response {
        let refusal = match self {
            Self::Method => {
                let allow = [(ALLOW, HeaderValue::from_static("POST"))];
                return (StatusCode::METHOD_NOT_ALLOWED, allow).into_response();
            }
            Self::Rejected(kind) => return idempotency.config().reject(kind),
            Self::Unverified(refusal) => refusal,
        };
        Span::current().record("refusal", refusal.as_str());
        tracing::warn!(refusal = refusal.as_str(), "a webhook's delivery was refused");
        let mut response = match refusal {
            Refusal::IdMissing | Refusal::IdMalformed => {
                idempotency.config().reject(RejectionKind::DeliveryUnidentified)
            }
            _ => {
                let mut response = idempotency.config().reject(RejectionKind::DeliveryUnverified);
                // A 401 has to name a scheme (RFC 9110, section 15.5.2); no provider has registered one.
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Webhook"));
                response
            }
        };
        response.extensions_mut().insert(refusal);
        response
    }
}

/// A provider does not read problem documents, and a 410 says to some of them that the endpoint is
/// gone for good: what is done is done, and a 200 says so.
fn for_provider(response: Response, idempotency: &IdempotencyLayer) -> Response {
    match response.extensions().get::<Rejection>().map(Rejection::kind) {
        Some(RejectionKind::ResponseNotKept | RejectionKind::ResponseExpired) => {
            let mut done = Response::new(Body::empty());
            let replayed = idempotency.config().replayed_header.clone();
            done.headers_mut().insert(replayed, HeaderValue::from_static("true"));
            finish(done, Outcome::Replayed)
        }
        _ => {
            if let Some(outcome) = response.extensions().get::<Outcome>() {
                record(*outcome);
            }
            response
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for WebhookService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
