//! What the senders do: sign, and post.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::Sha256;
use tower_idempotency::webhook::{SigningKeys, sign};

use crate::BoxError;
use crate::service::{GITHUB_SECRET, STANDARD_SECRET, STRIPE_SECRET};

/// One attempt to deliver.
#[derive(Clone)]
pub(crate) struct Attempt {
    path: &'static str,
    headers: HeaderMap,
    pub(crate) body: String,
}

impl Attempt {
    pub(crate) fn github(delivery: &'static str, body: &str) -> Result<Self, BoxError> {
        let mut headers = HeaderMap::new();
        let signature = format!("sha256={}", hmac(GITHUB_SECRET, body)?);
        headers.insert(HeaderName::from_static("x-hub-signature-256"), HeaderValue::from_str(&signature)?);
        headers.insert(HeaderName::from_static("x-github-delivery"), HeaderValue::from_static(delivery));
        Ok(Self { path: "/webhooks/github", headers, body: body.to_owned() })
    }

    pub(crate) fn stripe(at: i64, body: &str) -> Result<Self, BoxError> {
        let mut headers = HeaderMap::new();
        let signature = format!("t={at},v1={}", hmac(STRIPE_SECRET, &format!("{at}.{body}"))?);
        headers.insert(HeaderName::from_static("stripe-signature"), HeaderValue::from_str(&signature)?);
        Ok(Self { path: "/webhooks/stripe", headers, body: body.to_owned() })
    }

    pub(crate) fn standard(id: &str, at: i64, body: &str) -> Result<Self, BoxError> {
        let headers = sign(&SigningKeys::new([STANDARD_SECRET])?, id, at, body.as_bytes())?;
        Ok(Self { path: "/webhooks/standard", headers, body: body.to_owned() })
    }

    /// Another body under the same signature.
    pub(crate) fn tampered(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) is_replay: bool,
    pub(crate) body: Bytes,
}

pub(crate) struct Client {
    address: SocketAddr,
    http: legacy::Client<HttpConnector, Body>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, http: legacy::Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn post(&self, attempt: &Attempt) -> Result<Answer, BoxError> {
        let mut request = Request::post(format!("http://{}{}", self.address, attempt.path))
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(attempt.body.clone()))?;
        request.headers_mut().extend(attempt.headers.clone());
        let (parts, body) = self.http.request(request).await?.into_parts();
        let is_replay = parts.headers.contains_key("idempotent-replayed");
        let body = to_bytes(Body::new(body), 1 << 20).await?;
        Ok(Answer { status: parts.status, is_replay, body })
    }
}

pub(crate) fn now() -> Result<i64, BoxError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?)
}

fn hmac(secret: &str, message: &str) -> Result<String, BoxError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())?;
    mac.update(message.as_bytes());
    Ok(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
}
