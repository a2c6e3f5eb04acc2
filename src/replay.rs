//! Row to response.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures_util::future::BoxFuture;
use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use uuid::Uuid;

use crate::claim::{Record, Verdict};
use crate::fingerprint::Digest;
use crate::idempotency::Idempotency;
use crate::record::{Resource, decode};
use crate::rejection::RejectionKind;

/// The response header that marks a replay.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a record has to say to a request.
pub(crate) enum Replay {
    Response(Response),
    Resource(Response, Resource),
    Refused(RejectionKind, Option<HeaderValue>),
}

/// Reads a record for a request. The fingerprint is compared first, whatever the record says.
pub(crate) fn replay(record: Record, fingerprint: &Digest) -> Replay {
    if !fingerprint.matches(&record.fingerprint) {
        return Replay::Refused(RejectionKind::KeyReused, None);
    }
    match record.verdict {
        Verdict::Tombstone => return Replay::Refused(RejectionKind::ResponseExpired, None),
        Verdict::Broken | Verdict::Lapsed => {
            return unreadable(record.claim_id, "its state is not one of a settled record");
        }
        Verdict::Completed | Verdict::Failed => {}
    }
    let status = record.status.and_then(|status| u16::try_from(status).ok());
    let Some(status) = status.and_then(|status| StatusCode::from_u16(status).ok()) else {
        return unreadable(record.claim_id, "it has no status that HTTP knows");
    };
    let Some(headers) = record.headers.as_deref().and_then(decode) else {
        return unreadable(record.claim_id, "its headers are not of a known format");
    };
    match (record.body, record.resource) {
        (Some(body), _) => Replay::Response(response(status, headers, Body::from(body))),
        (None, Some(resource)) => Replay::Resource(response(status, headers, Body::empty()), resource),
        (None, None) => Replay::Refused(RejectionKind::ResponseNotKept, headers.get(LOCATION).cloned()),
    }
}

fn unreadable(claim_id: Uuid, why: &str) -> Replay {
    tracing::error!(
        %claim_id,
        "a record cannot be read: {why}; a handler ended its transaction itself, or another version wrote the row. Look at what the key stands for, then delete the row of `idempotency.record` with this claim_id by hand"
    );
    Replay::Refused(RejectionKind::RecordUnreadable, None)
}

fn response(status: StatusCode, headers: HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Renders a resource as it is now.
pub(crate) type Resolver = Arc<dyn Fn(Resource, Idempotency) -> BoxFuture<'static, Response> + Send + Sync>;

/// The stored status and headers, and the body that the resolver renders. A resolver that does not
/// succeed answers for itself: the resource may be gone.
pub(crate) fn resolved(stored: Response, rendered: Response) -> Response {
    if !rendered.status().is_success() {
        return rendered;
    }
    let (mut parts, body) = rendered.into_parts();
    let (stored, _) = stored.into_parts();
    parts.status = stored.status;
    let names: Vec<HeaderName> = stored.headers.keys().cloned().collect();
    for name in names {
        if !parts.headers.contains_key(&name) {
            for value in stored.headers.get_all(&name) {
                parts.headers.append(name.clone(), value.clone());
            }
        }
    }
    Response::from_parts(parts, body)
}
