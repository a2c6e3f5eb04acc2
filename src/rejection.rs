//! Every response of our own; the table is in `kind.rs`.

mod kind;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use crate::telemetry::Outcome;

pub use kind::{RejectionKind, Retry};

/// A response that the layer made itself, as data.
///
/// It is found in the extensions of every such response, also where
/// [`rejection_with`](crate::IdempotencyLayer::rejection_with) drew the response, and also where an
/// extractor of this crate made it.
#[derive(Clone)]
pub struct Rejection {
    kind: RejectionKind,
    location: Option<HeaderValue>,
    answers: Option<Arc<Answers>>,
}

impl Rejection {
    pub(crate) fn new(kind: RejectionKind, answers: &Arc<Answers>) -> Self {
        Self { kind, location: None, answers: Some(Arc::clone(answers)) }
    }

    /// Where no layer has been, so that no rendering is configured.
    pub(crate) const fn bare(kind: RejectionKind) -> Self {
        Self { kind, location: None, answers: None }
    }

    pub(crate) fn with_location(mut self, location: Option<HeaderValue>) -> Self {
        self.location = location;
        self
    }

    /// Why.
    pub const fn kind(&self) -> RejectionKind {
        self.kind
    }

    /// The response's status.
    pub fn status(&self) -> StatusCode {
        match self.answers.as_ref().and_then(|answers| answers.in_flight) {
            Some(status) if self.kind == RejectionKind::InFlight => status,
            _ => self.kind.status(),
        }
    }

    /// How long to wait before the next attempt, where there is one.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.kind.retry_after()
    }

    /// The URI that names this kind of problem (RFC 9457, section 3.1.1).
    pub fn type_uri(&self) -> String {
        match self.answers.as_ref().and_then(|a| a.documentation.as_deref()) {
            Some(base) => format!("{base}#{}", self.kind.code()),
            None => format!("urn:tower-idempotency:{}", self.kind.code()),
        }
    }

    fn problem(&self) -> Response {
        let body = serde_json::json!({
            "type": self.type_uri(),
            "title": self.kind.title(),
            "status": self.status().as_u16(),
            "detail": self.kind.detail(),
            "retry": self.kind.retry().as_str(),
        });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let custom = self.answers.as_ref().and_then(|a| a.render.as_ref());
        let mut response = custom.map_or_else(|| self.problem(), |render| render(&self));
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers.entry(RETRY_AFTER).or_insert_with(|| wait.as_secs().into());
        }
        if let Some(location) = &self.location {
            headers.entry(LOCATION).or_insert_with(|| location.clone());
        }
        let link = self.answers.as_ref().and_then(|a| a.link.clone());
        if let Some(link) = link {
            headers.append(LINK, link);
        }
        response.extensions_mut().insert(Outcome::Rejected(self.kind));
        response.extensions_mut().insert(self);
        response
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.title(), self.kind.detail())
    }
}

impl std::error::Error for Rejection {}

type Render = Arc<dyn Fn(&Rejection) -> Response + Send + Sync>;

/// How rejections are drawn.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    pub(crate) documentation: Option<String>,
    pub(crate) link: Option<HeaderValue>,
    pub(crate) render: Option<Render>,
    pub(crate) in_flight: Option<StatusCode>,
}
