//! Events over HTTP, signed by the Standard Webhooks specification.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;

use super::event::{Event, Payload};
use super::publisher::{PublishError, Publisher};
use crate::webhook::{ConfigError, SigningKeys, sign};

/// Posts each event to an endpoint, signed as [Standard Webhooks][spec] says, so that a
/// [`WebhookLayer`](crate::webhook::WebhookLayer) with
/// [`StandardWebhooks`](crate::webhook::StandardWebhooks) can receive it. With the feature
/// `outbox-http`.
///
/// The body is the event's payload, as it is. `webhook-id` is the event's id, the same at every
/// attempt; `webhook-timestamp` and `webhook-signature` are the attempt's own. The event's headers
/// are sent, too, and `event-type`, `aggregate-type` and `aggregate-id`. No header but the id and the
/// time is signed: what a receiver decides by belongs into the payload.
///
/// # What the answer means
///
/// | the answer | the event |
/// |---|---|
/// | 2xx | is delivered |
/// | 410 | is a [dead letter](super::DeadLetters) at once, and so is each after it for as long as the endpoint says so: the receiver has gone for good |
/// | 408, 425, 429, 502, 503, 504, or none: no connection, one that is lost before the answer, or none in time | is tried again for [as long as it takes](PublishError::unavailable) |
/// | anything else | is tried again, [a bounded number of times](PublishError::failed) |
/// | none: a header, a type or the aggregate's id cannot stand in a header of HTTP | is a dead letter at once |
///
/// What an endpoint that hangs or dies at one event costs is that event's aggregate, which waits: an
/// endpoint that is away looks the same, and shall not make dead letters.
///
/// A `Retry-After`, in seconds or as a date, is kept: the event is not sent before it is over.
/// Redirects are not followed, since a signed message is for the one it was signed for; they count
/// as "anything else".
///
/// # https
///
/// [`new`](Self::new) speaks plain HTTP, to a proxy or a service nearby, and refuses an `https:`
/// endpoint. For one, give [`with_connector`](Self::with_connector) a connector that does TLS, such
/// as that of `hyper-rustls` or `hyper-tls`: so the application chooses its TLS and whose
/// certificates it trusts.
///
/// ```ignore
/// let tls = hyper_rustls::HttpsConnectorBuilder::new().with_native_roots()?.https_only().enable_http1().build();
/// let publisher = HttpPublisher::with_connector("https://example.com/events", keys, tls)?;
/// ```
///
/// # Examples
///
/// ```no_run
/// use tower_idempotency::outbox::{HttpPublisher, Relay};
/// use tower_idempotency::webhook::SigningKeys;
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let keys = SigningKeys::new([std::env::var("EVENTS_SECRET")?])?;
/// let publisher = HttpPublisher::new("http://stock.internal/events", keys)?;
/// Relay::new(pool, publisher).run(std::future::pending()).await;
/// # Ok(())
/// # }
/// ```
///
/// [spec]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
pub struct HttpPublisher<C = HttpConnector> {
    endpoint: Uri,
    keys: SigningKeys,
    client: Client<C, Full<Bytes>>,
    timeout: Duration,
}

impl HttpPublisher {
    /// Publishes to this endpoint, an absolute `http:` URL.
    ///
    /// # Errors
    ///
    /// If it is another kind of URL, or has a user's name in it.
    pub fn new(endpoint: &str, keys: SigningKeys) -> Result<Self, ConfigError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let publisher = Self::with_connector(endpoint, keys, connector)?;
        if publisher.endpoint.scheme_str() != Some("http") {
            return Err(ConfigError(
                "an `https:` endpoint needs a connector that does TLS: `with_connector`",
            ));
        }
        Ok(publisher)
    }
}

impl<C> HttpPublisher<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    /// Publishes to this endpoint, an absolute `http:` or `https:` URL, over connections that this
    /// connector makes, with HTTP/1.1.
    ///
    /// # Errors
    ///
    /// As [`new`](HttpPublisher::new).
    pub fn with_connector(endpoint: &str, keys: SigningKeys, connector: C) -> Result<Self, ConfigError> {
        let endpoint: Uri =
            endpoint.parse().map_err(|_| ConfigError("an endpoint is an absolute URL, and this is none"))?;
        let (Some("http" | "https"), Some(authority)) = (endpoint.scheme_str(), endpoint.authority()) else {
            return Err(ConfigError("an endpoint is an absolute `http:` or `https:` URL"));
        };
        if authority.as_str().contains('@') {
            return Err(ConfigError("an endpoint has no user's name: the signature says who sends"));
        }
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { endpoint, keys, client, timeout: TIMEOUT })
    }

    /// How long an endpoint may take to answer. Defaults to 15 seconds. The relay's
    /// [`publish_timeout`](super::Relay::publish_timeout) counts, too, and should be longer.
    #[must_use]
    pub const fn timeout(mut self, duration: Duration) -> Self {
        self.timeout = duration;
        self
    }

    fn request(&self, event: &Event) -> Result<Request<Full<Bytes>>, PublishError> {
        let body = match event.payload() {
            Payload::Empty => Bytes::new(),
            Payload::Json(bytes) | Payload::Bytes(bytes) => bytes.clone(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in event.headers() {
            let name = HeaderName::try_from(name).map_err(PublishError::rejected)?;
            if !is_the_connections(&name) {
                headers.insert(name, value_of(value)?);
            }
        }
        if let (Some(media_type), false) =
            (event.payload().content_type(), headers.contains_key(header::CONTENT_TYPE))
        {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(EVENT_TYPE, value_of(event.event_type())?);
        headers.insert(AGGREGATE_TYPE, value_of(event.aggregate_type())?);
        headers.insert(AGGREGATE_ID, value_of(event.aggregate_id())?);
        let id = event.id().to_string();
        headers.extend(sign(&self.keys, &id, now(), &body).map_err(PublishError::rejected)?);

        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.clone();
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl<C> Publisher for HttpPublisher<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        let request = self.request(&event)?;
        let answer = match tokio::time::timeout(self.timeout, self.client.request(request)).await {
            Ok(Ok(answer)) => answer,
            // Whatever it is, it is no answer.
            Ok(Err(error)) => return Err(PublishError::unavailable(error)),
            Err(_) => return Err(PublishError::unavailable("the endpoint did not answer in time")),
        };
        let (head, body) = answer.into_parts();
        // So that the connection can be used again. A body that is long or slow costs the connection.
        drop(tokio::time::timeout(DRAIN_TIMEOUT, Limited::new(body, DRAINED).collect()).await);
        verdict(head.status, &head.headers)
    }
}

fn verdict(status: StatusCode, headers: &HeaderMap) -> Result<(), PublishError> {
    if status.is_success() {
        return Ok(());
    }
    let text = match status.as_u16() {
        300..400 => format!("the endpoint answered {status}, and redirects are not followed"),
        _ => format!("the endpoint answered {status}"),
    };
    let error = match status.as_u16() {
        410 => return Err(PublishError::rejected(text)),
        408 | 425 | 429 | 502..=504 => PublishError::unavailable(text),
        _ => PublishError::failed(text),
    };
    Err(match headers.get(header::RETRY_AFTER).and_then(retry_after) {
        Some(duration) => error.retry_after(duration),
        None => error,
    })
}

/// Seconds from now, or a date.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than fits is as long as the relay waits for anyone.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// What says how this message is sent, and not what it means; `webhook-…` is overwritten anyway.
fn is_the_connections(name: &HeaderName) -> bool {
    let names = [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
    ];
    names.contains(name) || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

fn value_of(text: &str) -> Result<HeaderValue, PublishError> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(PublishError::rejected)
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

impl<C> fmt::Debug for HttpPublisher<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its path and query, where a receiver may have put a token.
        f.debug_struct("HttpPublisher")
            .field("authority", &self.endpoint.authority())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

const EVENT_TYPE: HeaderName = HeaderName::from_static("event-type");
const AGGREGATE_TYPE: HeaderName = HeaderName::from_static("aggregate-type");
const AGGREGATE_ID: HeaderName = HeaderName::from_static("aggregate-id");

const USER_AGENT: &str = concat!("tower-idempotency/", env!("CARGO_PKG_VERSION"));

/// The shortest that the specification recommends.
const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Of an answer's body.
const DRAINED: usize = 64 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
