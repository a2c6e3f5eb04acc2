//! Shopify.
//!
//! The rule: [Deliver webhooks through HTTPS][https]. `X-Shopify-Hmac-SHA256` is the HMAC of the
//! body in base64, under the app's client secret; `X-Shopify-Webhook-Id` names the delivery, the
//! same on every attempt ([Ignore duplicates][duplicates]). A failed delivery is tried again
//! [eight times within four hours][retries], with the payload of the first.
//!
//! [https]: https://shopify.dev/docs/apps/build/webhooks/subscribe/https
//! [duplicates]: https://shopify.dev/docs/apps/build/webhooks/ignore-duplicates
//! [retries]: https://shopify.dev/changelog/updates-to-webhook-retry-mechanism

use http::HeaderName;
use http::request::Parts;

use super::header::{base64, single};
use super::provider::{Provider, Unverified, Verified};
use super::refusal::Refusal;
use super::secret::{ConfigError, HmacSha256Keys, Secret};
use crate::fingerprint::Fingerprint;
use crate::retention::Retention;

/// Deliveries of Shopify.
///
/// The body is signed, the headers are not: the id, the topic and the shop are whatever the sender
/// says, and the secret is the same for all shops of an app. Whoever gets hold of one delivery can
/// send it again under a new id, unless deliveries are told apart by their bodies
/// ([`WebhookLayer::by_body`](super::WebhookLayer::by_body)). Take the shop from the body where it
/// decides anything.
#[derive(Debug)]
pub struct Shopify {
    keys: HmacSha256Keys,
}

impl Shopify {
    /// With the app's client secret, or several while they rotate.
    ///
    /// # Errors
    ///
    /// If there is none, or one could not protect anything.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        Ok(Self { keys: HmacSha256Keys::new(secrets)? })
    }
}

impl Provider for Shopify {
    fn name(&self) -> &str {
        "shopify"
    }

    fn precheck(&self, parts: &Parts, _now: i64) -> Result<(), Refusal> {
        signature(parts).map(drop)
    }

    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
        self.keys.verify(&[delivery.body], &[signature(delivery.parts)?])?;
        match single(&delivery.parts.headers, "x-shopify-webhook-id") {
            Ok(id) => Ok(Verified::new(id)),
            Err(Refusal::HeaderMissing) => Err(Refusal::IdMissing),
            Err(_) => Err(Refusal::IdMalformed),
        }
    }

    /// 10 MiB: orders with many lines are large, and Shopify names no cap.
    fn body_limit(&self) -> usize {
        10 << 20
    }

    /// By the body, and by the topic and the shop that the headers name: they are not signed, and an
    /// id that came first under others would else have the real delivery answered, and lost.
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::normalized()
            .including_header(HeaderName::from_static("x-shopify-topic"))
            .including_header(HeaderName::from_static("x-shopify-shop-domain"))
    }

    /// Two days: far more than the four hours of Shopify's retries, for what their queue holds back.
    fn retention(&self) -> Retention {
        Retention::days(2)
    }
}

fn signature(parts: &Parts) -> Result<[u8; 32], Refusal> {
    base64(single(&parts.headers, "x-shopify-hmac-sha256")?).ok_or(Refusal::HeaderMalformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::testing::{Delivery, each_header_is_needed_once, no_value_panics};

    fn shopify() -> Shopify {
        Shopify::new(["hush"]).unwrap()
    }

    /// Shopify documents no vector. This one is `openssl dgst -sha256 -hmac hush -binary | base64`.
    fn delivery() -> Delivery {
        Delivery::new(br#"{"id":820982911946154508,"email":"jon@example.com"}"#)
            .header("x-shopify-hmac-sha256", "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8=")
            .header("x-shopify-webhook-id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043")
    }

    #[test]
    fn a_delivery_verifies() {
        let verified = delivery().verify(&shopify()).unwrap();
        assert_eq!(verified, Verified::new("b54557e4-bdd9-4b37-8a5f-bf7d70bcd043"));
        let rotating = Shopify::new(["new", "hush"]).unwrap();
        assert!(delivery().verify(&rotating).is_ok());
    }

    #[test]
    fn another_body_or_secret_does_not_verify() {
        assert_eq!(delivery().body(b"{}").verify(&shopify()), Err(Refusal::SignatureMismatch));
        let other = Shopify::new(["Hush"]).unwrap();
        assert_eq!(delivery().verify(&other), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn headers_are_needed_once() {
        let outcomes = each_header_is_needed_once(&shopify(), delivery);
        assert_eq!(outcomes["x-shopify-hmac-sha256"], (Refusal::HeaderMissing, Refusal::HeaderRepeated));
        assert_eq!(outcomes["x-shopify-webhook-id"], (Refusal::IdMissing, Refusal::IdMalformed));
    }

    #[test]
    fn no_header_value_panics() {
        no_value_panics(&shopify(), delivery);
    }
}
