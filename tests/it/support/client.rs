//! A client: one call, one answer.

use std::fmt;
use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, request};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Keeps connections alive between calls.
#[derive(Clone)]
pub(crate) struct Client(legacy::Client<HttpConnector, Body>);

impl Client {
    pub(crate) fn new() -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    /// HTTP/2 without TLS, by prior knowledge.
    pub(crate) fn http2() -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http())
    }
}

/// A request under construction.
#[must_use]
pub(crate) struct Call {
    client: Client,
    builder: request::Builder,
    body: Body,
}

impl Call {
    pub(crate) fn new(client: &Client, address: SocketAddr, method: &str, path: &str) -> Self {
        let builder = Request::builder().method(method).uri(format!("http://{address}{path}"));
        Self { client: client.clone(), builder, body: Body::empty() }
    }

    pub(crate) fn via(mut self, client: &Client) -> Self {
        self.client = client.clone();
        self
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Adds a line; also one that is there already.
    pub(crate) fn header<V>(mut self, name: &'static str, value: V) -> Self
    where
        V: TryInto<HeaderValue, Error: fmt::Debug>,
    {
        self.builder = self.builder.header(HeaderName::from_static(name), value.try_into().unwrap());
        self
    }

    pub(crate) fn json(self, body: &str) -> Self {
        self.header("content-type", "application/json").body(body.to_owned())
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it and reads the whole answer.
    pub(crate) async fn send(self) -> Answer {
        self.try_send().await.unwrap()
    }

    /// As [`send`](Self::send), where the connection may break.
    pub(crate) async fn try_send(self) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let request = self.builder.body(self.body).unwrap();
        let (parts, body) = self.client.0.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

/// A whole response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Asserts that it is one of the layer's own answers.
    #[track_caller]
    pub(crate) fn is_rejected(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["type"], format!("urn:tower-idempotency:{code}"), "{problem}");
        assert_eq!(problem["status"], status);
        assert_eq!(self.header("cache-control"), Some("no-store"));
    }

    /// Asserts that it replays another, byte by byte but for what belongs to one transfer.
    #[track_caller]
    pub(crate) fn replays(&self, first: &Self) {
        assert!(!first.is_replay(), "the first one is a replay: {first:?}");
        assert!(self.is_replay(), "not a replay: {self:?}");
        let lines = |answer: &Self| -> Vec<(HeaderName, HeaderValue)> {
            let lines = answer.headers.iter();
            let own = |name: &HeaderName| name == "date" || name == "idempotent-replayed";
            lines.filter(|(name, _)| !own(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        assert_eq!(self.status, first.status);
        assert_eq!(lines(self), lines(first));
        assert_eq!(self.body, first.body);
    }
}
