//! What a request meets, in order.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, OriginalUri};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, RequestExt as _};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError};
use tower_service::Service;
use tracing::{Instrument as _, Span};

use crate::buffer::RequestBody;
use crate::claim::{self, Claim, Record};
use crate::detach::Detach;
use crate::execute::{Job, execute, unprotected};
use crate::idempotency::Idempotency;
use crate::layer::Config;
use crate::rejection::{Rejection, RejectionKind};
use crate::replay::{Replay, replay, resolved};
use crate::retention;
use crate::scope::{Scope, Unresolved, operation_of};
use crate::telemetry::{self, Outcome, finish};
use crate::tx::TxHandle;

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> IdempotencyService<S> {
    pub(crate) const fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, B> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response: IntoResponse, Error: Send, Future: Send> + Clone + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is not ready, the original is: it goes with the request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let request = request.map(Body::new);
        let response = respond(Arc::clone(&self.config), inner, request).instrument(telemetry::span());
        ResponseFuture(Box::pin(response))
    }
}

async fn respond<S>(config: Arc<Config>, inner: S, request: Request<Body>) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response: IntoResponse, Error: Send, Future: Send> + Clone + Send + 'static,
{
    // 1. Method.
    let protects = config.methods.contains(request.method());
    if !protects {
        return unprotected(config, inner, request).await;
    }
    if request.extensions().get::<TxHandle>().is_some() {
        tracing::error!(
            "two idempotency layers stand on one route, or one inside of an `Extension(TxHandle)`; remove one"
        );
        return Ok(config.reject(RejectionKind::LayerTwice));
    }

    // 2. Key.
    let (mut parts, body) = request.into_parts();
    let key = match config.key.key(&parts) {
        Ok(Some(key)) => key,
        Ok(None) => return unprotected(config, inner, Request::from_parts(parts, body)).await,
        Err(kind) => return Ok(config.reject(kind)),
    };
    Span::current().record("key", key.short_hash());

    // 3. Tenant.
    let tenant = match config.tenant.resolve(&mut parts).await {
        Ok(tenant) => tenant,
        Err(unresolved) => return Ok(config.without_tenant(unresolved)),
    };

    // 4. Operation.
    let operation = config.operation_of(&parts);
    Span::current().record("operation", &operation);
    let scope = Scope { tenant, operation, key };

    // 5. Body.
    let (parts, bytes, body) = match config.read_body(parts, body).await {
        Ok(read) => read,
        Err(kind) => return Ok(config.reject(kind)),
    };

    // 6. Fingerprint.
    let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
    let fingerprint = config.fingerprint.digest(&parts, uri, &bytes);

    // 7. Claim.
    let idempotency = Idempotency::new(scope.clone());
    let mut request = claim::Request::new(scope, fingerprint, config.retention.interval());
    request.tombstone = config.tombstone.map(retention::interval);
    let visit = config.in_flight.visit(request.hash);
    let connection = match config.claim(&visit, &request).await {
        Ok(Claim::Won(connection)) => connection,
        Ok(Claim::Settled(record)) => return Ok(config.answer_from(record, &request, &idempotency).await),
        Ok(Claim::InFlight) => return Ok(config.reject(RejectionKind::InFlight)),
        Err(kind) => return Ok(config.reject(kind)),
    };

    // 8. Handler, 9. record: finished even if the client hangs up.
    let executing = (visit.execute(), config.executions.enter());
    let job = Job { config, inner, parts, body, request, idempotency };
    Detach::new(async move {
        let response = execute(job, connection).await;
        drop(executing);
        response
    })
    .await
}

impl Config {
    pub(crate) fn reject(&self, kind: RejectionKind) -> Response {
        finish(Rejection::new(kind, &self.answers).into_response(), Outcome::Rejected(kind))
    }

    fn without_tenant(&self, unresolved: Unresolved) -> Response {
        match unresolved {
            Unresolved::None => self.reject(RejectionKind::TenantMissing),
            Unresolved::Refused(response) => {
                finish(*response, Outcome::Rejected(RejectionKind::TenantMissing))
            }
            Unresolved::Misconfigured(what) => {
                tracing::error!("no tenant: {what}");
                self.reject(RejectionKind::ExtensionMissing)
            }
        }
    }

    fn operation_of(&self, parts: &Parts) -> String {
        if let Some(operation) = &self.operation {
            return operation.clone();
        }
        let matched = parts.extensions.get::<MatchedPath>();
        if matched.is_none() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request has no matched path, so that its operation is its full path; name it with `.operation(..)`, and add the layer with `route_layer`"
            );
        }
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        operation_of(&parts.method, matched, uri)
    }

    async fn read_body(
        &self,
        parts: Parts,
        body: Body,
    ) -> Result<(Parts, Bytes, RequestBody), RejectionKind> {
        let mut request = Request::from_parts(parts, body);
        if let Some(limit) = self.body_limit {
            DefaultBodyLimit::max(limit).apply(&mut request);
        }
        if !self.fingerprint.reads_body() {
            let (parts, body) = request.into_parts();
            return Ok((parts, Bytes::new(), RequestBody::streaming(body)));
        }
        let (parts, body) = request.with_limited_body().into_parts();
        let collected = body.collect().await.map_err(|error| {
            if is_over_limit(&error) { RejectionKind::BodyTooLarge } else { RejectionKind::BodyIncomplete }
        })?;
        let trailers = collected.trailers().cloned();
        let bytes = collected.to_bytes();
        Ok((parts, bytes.clone(), RequestBody::Buffered { bytes, trailers }))
    }

    /// Answers from a record: the replay, or why there is none.
    pub(crate) async fn answer_from(
        &self,
        record: Record,
        request: &claim::Request,
        idempotency: &Idempotency,
    ) -> Response {
        let mut response = match replay(record, &request.fingerprint) {
            Replay::Response(response) => response,
            Replay::Resource(stored, resource) => match &self.resolver {
                Some(resolve) => resolved(stored, resolve(resource, idempotency.clone()).await),
                None => stored,
            },
            Replay::Refused(kind, location) => {
                let rejection = Rejection::new(kind, &self.answers).with_location(location);
                return finish(rejection.into_response(), Outcome::Rejected(kind));
            }
        };
        response.headers_mut().insert(self.replayed_header.clone(), HeaderValue::from_static("true"));
        finish(response, Outcome::Replayed)
    }

    /// What becomes of a response. Our own are never recorded, nor is a 404 of no route.
    pub(crate) fn settlement(&self, response: &Response, matched: bool) -> crate::Settlement {
        let unknown_path = response.status() == StatusCode::NOT_FOUND && !matched;
        let own = response.extensions().get::<Rejection>().is_some();
        match (response.extensions().get::<crate::Settlement>(), &self.settle_with) {
            _ if own || unknown_path => crate::Settlement::Release,
            (Some(settlement), _) => *settlement,
            (None, Some(settle)) => settle(response),
            (None, None) => crate::Settlement::by_status(response.status()),
        }
    }
}

pub(crate) fn is_over_limit(error: &axum::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The response, sooner or later. Dropping it does not stop an execution that has begun.
#[must_use]
pub struct ResponseFuture<E>(pub(crate) Pin<Box<dyn Future<Output = Result<Response, E>> + Send>>);

impl<E> Future for ResponseFuture<E> {
    type Output = Result<Response, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<E> fmt::Debug for ResponseFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
