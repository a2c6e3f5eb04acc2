//! The smallest HTTP client that a tour needs.

use std::net::SocketAddr;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::BoxError;

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    http: legacy::Client<HttpConnector, Body>,
}

/// A request, to be sent any number of times.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) token: Option<&'static str>,
    pub(crate) key: Option<&'static str>,
    pub(crate) body: &'static str,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, http: legacy::Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, BoxError> {
        let uri = format!("http://{}{}", self.address, call.path);
        let mut request = Request::builder().method(&call.method).uri(uri);
        if let Some(token) = call.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(key) = call.key {
            request = request.header("idempotency-key", key);
        }
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let (parts, body) = self.http.request(request.body(Body::from(call.body))?).await?.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await?;
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

impl Call {
    pub(crate) fn post(path: impl Into<String>, body: &'static str) -> Self {
        Self { method: Method::POST, path: path.into(), token: None, key: None, body }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), token: None, key: None, body: "" }
    }

    pub(crate) fn token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    pub(crate) fn key(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    pub(crate) fn body(mut self, body: &'static str) -> Self {
        self.body = body;
        self
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}
