//! What the providers send, signed as their documentation says, without the crate's own code.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use sqlx::PgPool;
use tower_idempotency::webhook::{GitHub, Shopify, Slack, StandardWebhooks, Stripe, WebhookLayer};

use super::{Call, Service, through};

/// One provider.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sender {
    GitHub,
    Shopify,
    Slack,
    Standard,
    Stripe,
}

pub(crate) const SENDERS: [Sender; 5] =
    [Sender::GitHub, Sender::Shopify, Sender::Slack, Sender::Standard, Sender::Stripe];

pub(crate) const SECRET: &str = "It's a Secret to Everybody";
pub(crate) const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

impl Sender {
    /// A layer that takes its deliveries.
    pub(crate) fn layer(self, pool: &PgPool) -> WebhookLayer {
        let unnamed = through::unnamed(pool);
        let pool = through::pool(pool);
        let layer = match self {
            Self::GitHub => WebhookLayer::new(pool, GitHub::new([SECRET]).unwrap()),
            Self::Shopify => WebhookLayer::new(pool, Shopify::new([SECRET]).unwrap()),
            Self::Slack => WebhookLayer::new(pool, Slack::new([SECRET]).unwrap()),
            Self::Standard => WebhookLayer::new(pool, StandardWebhooks::new([STANDARD_SECRET]).unwrap()),
            Self::Stripe => WebhookLayer::new(pool, Stripe::new([SECRET]).unwrap()),
        };
        layer.idempotency(|layer| if unnamed { layer.unnamed_statements() } else { layer })
    }

    /// A body with the id where this provider puts it there.
    pub(crate) fn body(self, id: &str) -> String {
        match self {
            Self::Stripe => format!(r#"{{"id":"{id}","object":"event","pending_webhooks":1}}"#),
            Self::Slack => format!(r#"{{"type":"event_callback","event_id":"{id}"}}"#),
            Self::GitHub | Self::Shopify | Self::Standard => r#"{"ref":"refs/heads/main"}"#.to_owned(),
        }
    }

    /// The headers of one attempt.
    pub(crate) fn headers(self, id: &str, at: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let key = if self == Self::Standard {
            STANDARD.decode(&STANDARD_SECRET["whsec_".len()..]).unwrap()
        } else {
            SECRET.as_bytes().to_vec()
        };
        let hmac = |prefix: String| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            mac.update(prefix.as_bytes());
            mac.update(body);
            mac.finalize().into_bytes()
        };
        let hex = |prefix: String| -> String { hmac(prefix).iter().map(|it| format!("{it:02x}")).collect() };
        match self {
            Self::GitHub => vec![
                ("x-hub-signature-256", format!("sha256={}", hex(String::new()))),
                ("x-github-delivery", id.to_owned()),
            ],
            Self::Shopify => vec![
                ("x-shopify-hmac-sha256", STANDARD.encode(hmac(String::new()))),
                ("x-shopify-webhook-id", id.to_owned()),
            ],
            Self::Slack => vec![
                ("x-slack-signature", format!("v0={}", hex(format!("v0:{at}:")))),
                ("x-slack-request-timestamp", at.to_string()),
            ],
            Self::Standard => vec![
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", at.to_string()),
                ("webhook-signature", format!("v1,{}", STANDARD.encode(hmac(format!("{id}.{at}."))))),
            ],
            Self::Stripe => {
                vec![("stripe-signature", format!("t={at},v1={},v0=00", hex(format!("{at}."))))]
            }
        }
    }

    /// One attempt to deliver this body, now.
    pub(crate) fn deliver_body(self, service: &Service, path: &str, id: &str, body: &[u8]) -> Call {
        self.signed_at(service, path, id, now(), body)
    }

    /// One attempt to deliver, now.
    pub(crate) fn deliver(self, service: &Service, path: &str, id: &str) -> Call {
        self.deliver_body(service, path, id, self.body(id).as_bytes())
    }

    pub(crate) fn signed_at(self, service: &Service, path: &str, id: &str, at: i64, body: &[u8]) -> Call {
        let call = service.post(path).header("content-type", "application/json");
        let headers = self.headers(id, at, body).into_iter();
        headers.fold(call, |call, (name, value)| call.header(name, value)).body(body.to_vec())
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

/// A clock that stands still until it is set.
#[derive(Clone)]
pub(crate) struct Clock(Arc<AtomicI64>);

impl Clock {
    pub(crate) fn at(seconds: i64) -> Self {
        Self(Arc::new(AtomicI64::new(seconds)))
    }

    pub(crate) fn set(&self, seconds: i64) {
        self.0.store(seconds, Ordering::SeqCst);
    }

    pub(crate) fn reader(&self) -> impl Fn() -> SystemTime + Send + Sync + use<> {
        let seconds = Arc::clone(&self.0);
        move || {
            let seconds = u64::try_from(seconds.load(Ordering::SeqCst)).unwrap();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        }
    }
}
