//! Response to row.

mod headers;

use std::convert::Infallible;

use axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap};

#[cfg(fuzzing)]
pub(crate) use headers::fuzz;
use headers::{FORMAT, encode};
pub(crate) use headers::{HeaderRules, decode};

/// A pointer to what a request has made, stored in place of the response's body.
///
/// For bodies that are large, or that must not be shown as they were. A replay renders the resource
/// as it is now, through [`resolve_with`](crate::IdempotencyLayer::resolve_with); without that it
/// has the stored status and headers, and no body.
///
/// # Examples
///
/// ```
/// use axum::{Json, http::StatusCode, response::IntoResponse};
/// use tower_idempotency::Resource;
///
/// fn created(id: i64) -> impl IntoResponse {
///     (StatusCode::CREATED, Resource::new("report", id.to_string()), Json("a large report"))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    kind: String,
    id: String,
}

impl Resource {
    /// Names a resource by its type and its id, each of 1 to 255 bytes. A longer one makes the
    /// response a 500, with its effects undone.
    pub fn new(kind: impl Into<String>, id: impl Into<String>) -> Self {
        Self { kind: kind.into(), id: id.into() }
    }

    pub(crate) const fn stored(kind: String, id: String) -> Self {
        Self { kind, id }
    }

    /// Its type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn fits(&self) -> bool {
        [&self.kind, &self.id].iter().all(|part| (1..=255).contains(&part.len()) && !part.contains('\0'))
    }
}

impl IntoResponseParts for Resource {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

impl IntoResponse for Resource {
    /// An empty 200; usually it stands in a tuple with a status and a body.
    fn into_response(self) -> Response {
        (self, ()).into_response()
    }
}

/// A response as it is stored.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) status: i16,
    pub(crate) headers: Vec<u8>,
    /// `None`: not kept, or a resource stands in its place.
    pub(crate) body: Option<Bytes>,
    pub(crate) resource: Option<Resource>,
}

impl Stored {
    pub(crate) fn new(
        status: StatusCode,
        headers: &HeaderMap,
        rules: &HeaderRules,
        body: Option<Bytes>,
        resource: Option<Resource>,
    ) -> Self {
        let kept = rules.kept(headers);
        let (headers, body) = match encode(&kept) {
            Some(headers) => (headers, body),
            // Too much of it: keep the pointer to the result, as with a body that is too large.
            None => {
                let location = kept.into_iter().filter(|(name, _)| **name == header::LOCATION);
                (encode(&location.collect::<Vec<_>>()).unwrap_or_else(|| vec![FORMAT]), None)
            }
        };
        let body = if resource.is_some() { None } else { body };
        // Fits: a status is below 1000.
        let status = i16::try_from(status.as_u16()).unwrap_or(i16::MAX);
        Self { status, headers, body, resource }
    }
}

impl Stored {
    /// A value that is no HTTP response.
    pub(crate) fn of_value(body: Bytes) -> Self {
        Self { status: 200, headers: vec![FORMAT], body: Some(body), resource: None }
    }
}

/// What may be stored of a body, in bytes. A value of a row can have 1 GiB, but is held in memory several
/// times on its way.
pub(crate) const LARGEST_RESPONSE: usize = 64 << 20;
