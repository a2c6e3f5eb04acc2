//! What is recorded, replayed and refused.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};

use super::IdempotencyLayer;
use crate::idempotency::Idempotency;
use crate::record::Resource;
use crate::rejection::Rejection;
use crate::replay::Resolver;
use crate::settlement::Settlement;

/// # Answers
impl IdempotencyLayer {
    /// Decides what becomes of a response, in place of [`Settlement::by_status`], which it can fall
    /// back to. A [`Settlement`] that the handler returns has the last word.
    pub fn settle_with(self, settle: impl Fn(&Response) -> Settlement + Send + Sync + 'static) -> Self {
        self.set(|config| config.settle_with = Some(Arc::new(settle)))
    }

    /// Renders a [`Resource`] when a response that stored one is replayed. Status and headers are
    /// the stored ones unless the rendering does not succeed; a header that it sets stands.
    ///
    /// Look the resource up for the tenant that is given.
    pub fn resolve_with<F, Fut>(self, resolve: F) -> Self
    where
        F: Fn(Resource, Idempotency) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoResponse> + Send + 'static,
    {
        let resolver: Resolver = Arc::new(move |resource, idempotency| {
            let rendering = resolve(resource, idempotency);
            Box::pin(async move { rendering.await.into_response() })
        });
        self.set(|config| config.resolver = Some(resolver))
    }

    /// Stores a response header that is left out by default, `Set-Cookie` for example.
    pub fn keep_header(self, name: HeaderName) -> Self {
        self.set(|config| config.responses.headers.keep(name))
    }

    /// Leaves a response header out of what is stored.
    ///
    /// By default those are left out that belong to one transfer, one caller or one moment:
    /// hop-by-hop fields, `Date`, `Age`, `Content-Length`, `Set-Cookie`, `WWW-Authenticate`,
    /// `Retry-After`, trace and request ids.
    pub fn omit_header(self, name: HeaderName) -> Self {
        self.set(|config| config.responses.headers.omit(name))
    }

    /// The header that marks a replay. Defaults to
    /// [`Idempotent-Replayed`](crate::IDEMPOTENT_REPLAYED).
    pub fn replayed_header(self, name: HeaderName) -> Self {
        self.set(|config| config.replayed_header = name)
    }

    /// Where the service explains its idempotency. Each rejection's `type` is this URL with its
    /// [code](crate::RejectionKind::code) as the fragment, and a `Link` points there.
    ///
    /// # Panics
    ///
    /// If the URL has anything but visible ASCII characters, or angle brackets: the `Link` could not
    /// carry it.
    #[track_caller]
    pub fn documentation(self, url: &str) -> Self {
        let visible = url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>'));
        let link = HeaderValue::from_str(&format!("<{url}>; rel=\"describedby\"")).ok().filter(|_| visible);
        let link =
            link.expect("a documentation URL has visible ASCII characters only, and no angle brackets");
        let url = url.to_owned();
        self.set(|config| {
            let answers = Arc::make_mut(&mut config.answers);
            answers.documentation = Some(url);
            answers.link = Some(link);
        })
    }

    /// Draws rejections in the service's own form. Defaults to `application/problem+json` (RFC
    /// 9457). `Cache-Control`, and `Retry-After` where it is missing, are added to what it returns.
    pub fn rejection_with(self, render: impl Fn(&Rejection) -> Response + Send + Sync + 'static) -> Self {
        self.set(|config| Arc::make_mut(&mut config.answers).render = Some(Arc::new(render)))
    }

    /// The status of the answer to a duplicate of a request in flight. Defaults to 409, of which a
    /// client of an API knows what it means; a sender that only retries after a 5xx wants a 503.
    ///
    /// # Panics
    ///
    /// If it is not an error's: a duplicate that is told "done" is not sent again, and what it
    /// duplicates may still fail.
    #[track_caller]
    pub fn in_flight_status(self, status: StatusCode) -> Self {
        let error = status.is_client_error() || status.is_server_error();
        assert!(error, "a duplicate of a request in flight is answered with an error, not with {status}");
        self.set(|config| Arc::make_mut(&mut config.answers).in_flight = Some(status))
    }
}
