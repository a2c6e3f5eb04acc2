//! What a request's span says, and nothing that must stay secret.

use std::fmt;

use axum::response::Response;
use tracing::Span;
use tracing::field::Empty;

use crate::rejection::{Rejection, RejectionKind};

/// How a request ended. The span's `outcome` field, and an extension of every response.
///
/// | word | meaning |
/// |---|---|
/// | `completed` | executed; effects and response committed together |
/// | `failed` | executed; effects undone, the refusal recorded |
/// | `released` | executed; effects undone, nothing recorded |
/// | `panicked` | the handler panicked; effects undone, nothing recorded |
/// | `service-error` | the inner service returned an error; effects undone, nothing recorded |
/// | `replayed` | answered from the record |
/// | `unprotected` | not a method or a request that the layer acts on |
/// | a [`RejectionKind::code`] | answered by the layer |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Executed; effects and response committed together.
    Completed,
    /// Executed; effects undone, the refusal recorded.
    Failed,
    /// Executed; effects undone, nothing recorded.
    Released,
    /// The handler panicked; effects undone, nothing recorded.
    Panicked,
    /// The inner service returned an error; effects undone, nothing recorded.
    ServiceError,
    /// Answered from the record.
    Replayed,
    /// Not a method or a request that the layer acts on.
    Unprotected,
    /// Answered by the layer.
    Rejected(RejectionKind),
}

impl Outcome {
    /// The word in the span.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Panicked => "panicked",
            Self::ServiceError => "service-error",
            Self::Replayed => "replayed",
            Self::Unprotected => "unprotected",
            Self::Rejected(kind) => kind.code(),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One span a request. `key` is a short hash: whoever has a key can ask for its response.
pub(crate) fn span() -> Span {
    tracing::info_span!("idempotency", operation = Empty, key = Empty, reruns = Empty, outcome = Empty)
}

/// Marks a response that is about to leave.
pub(crate) fn finish(mut response: Response, outcome: Outcome) -> Response {
    // Made by one of our extractors, or by a layer inside of this one: it says more than "released".
    let rejection = response.extensions().get::<Rejection>();
    let outcome = rejection.map_or(outcome, |rejection| Outcome::Rejected(rejection.kind()));
    record(outcome);
    response.extensions_mut().insert(outcome);
    response
}

/// For ends without a response.
pub(crate) fn record(outcome: Outcome) {
    Span::current().record("outcome", outcome.as_str());
}
