//! GitHub.
//!
//! The rule: [Validating webhook deliveries][validate]. `X-Hub-Signature-256` is `sha256=` and the
//! HMAC of the body in hexadecimal digits; `X-GitHub-Delivery` names the event, and is the same for
//! a [redelivery][redeliver]. Payloads are [capped at 25 MB][payloads]; deliveries of the past three
//! days can be redelivered, and none is [redelivered by itself][failed].
//!
//! [validate]: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
//! [redeliver]: https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
//! [payloads]: https://docs.github.com/en/webhooks/webhook-events-and-payloads
//! [failed]: https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries

use http::HeaderName;
use http::request::Parts;

use super::header::{hex, single};
use super::provider::{Provider, Unverified, Verified};
use super::refusal::Refusal;
use super::secret::{ConfigError, HmacSha256Keys, Secret};
use crate::fingerprint::Fingerprint;
use crate::retention::Retention;

/// Deliveries of GitHub.
///
/// The body is signed, the headers are not. Whoever gets hold of one delivery can send it again
/// under a new `X-GitHub-Delivery`, for as long as the secret is in use, and can name another event
/// in `X-GitHub-Event`. Where that matters, tell deliveries apart by their bodies:
/// [`WebhookLayer::by_body`](super::WebhookLayer::by_body), with a
/// [tombstone](crate::IdempotencyLayer::tombstone) as long as the secret lives. And read what
/// happened from the body.
///
/// # Examples
///
/// ```
/// use tower_idempotency::webhook::GitHub;
///
/// let github = GitHub::new(["It's a Secret to Everybody"])?;
/// assert!(GitHub::new([""]).is_err());
/// # Ok::<(), tower_idempotency::webhook::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct GitHub {
    keys: HmacSha256Keys,
}

impl GitHub {
    /// With the webhook's secret, or several while they rotate.
    ///
    /// # Errors
    ///
    /// If there is none, or one could not protect anything.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        Ok(Self { keys: HmacSha256Keys::new(secrets)? })
    }
}

impl Provider for GitHub {
    fn name(&self) -> &str {
        "github"
    }

    fn precheck(&self, parts: &Parts, _now: i64) -> Result<(), Refusal> {
        signature(parts).map(drop)
    }

    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
        self.keys.verify(&[delivery.body], &[signature(delivery.parts)?])?;
        match single(&delivery.parts.headers, "x-github-delivery") {
            Ok(id) => Ok(Verified::new(id)),
            Err(Refusal::HeaderMissing) => Err(Refusal::IdMissing),
            Err(_) => Err(Refusal::IdMalformed),
        }
    }

    /// 25 MB, GitHub's own cap.
    fn body_limit(&self) -> usize {
        25 << 20
    }

    /// By the body, and by the event that the headers name: they are not signed, and an id that
    /// came first under another event would else have the real delivery answered, and lost.
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::normalized().including_header(HeaderName::from_static("x-github-event"))
    }

    /// Four days: one more than GitHub redelivers.
    fn retention(&self) -> Retention {
        Retention::days(4)
    }
}

fn signature(parts: &Parts) -> Result<[u8; 32], Refusal> {
    let signature = single(&parts.headers, "x-hub-signature-256")?;
    signature.strip_prefix("sha256=").and_then(hex).ok_or(Refusal::HeaderMalformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::testing::{Delivery, each_header_is_needed_once, no_value_panics};

    const SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    fn github() -> GitHub {
        GitHub::new(["It's a Secret to Everybody"]).unwrap()
    }

    /// The vector of GitHub's documentation.
    fn documented() -> Delivery {
        Delivery::new(b"Hello, World!")
            .header("x-hub-signature-256", SIGNATURE)
            .header("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
    }

    #[test]
    fn the_documented_delivery_verifies() {
        let verified = documented().verify(&github()).unwrap();
        assert_eq!(verified, Verified::new("72d3162e-cc78-11e3-81ab-4c9367dc0958"));
    }

    #[test]
    fn either_secret_is_right_while_they_rotate() {
        let rotating = GitHub::new(["new", "It's a Secret to Everybody"]).unwrap();
        assert!(documented().verify(&rotating).is_ok());
        assert_eq!(documented().verify(&GitHub::new(["new"]).unwrap()), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn another_body_does_not_verify() {
        for body in [&b"Hello, World"[..], b"hello, World!", b"", b"Hello, World!\n"] {
            assert_eq!(documented().body(body).verify(&github()), Err(Refusal::SignatureMismatch));
        }
    }

    #[test]
    fn the_signature_has_one_form() {
        let digest = &SIGNATURE["sha256=".len()..];
        for value in
            [digest, "sha256=", "sha256=00", &format!("sha1={digest}"), &format!("{SIGNATURE},{SIGNATURE}")]
        {
            let delivery = documented().replace("x-hub-signature-256", value);
            assert_eq!(delivery.verify(&github()), Err(Refusal::HeaderMalformed), "{value}");
            assert_eq!(delivery.precheck(&github()), Err(Refusal::HeaderMalformed), "{value}");
        }
    }

    #[test]
    fn headers_are_needed_once() {
        let outcomes = each_header_is_needed_once(&github(), documented);
        assert_eq!(outcomes["x-hub-signature-256"], (Refusal::HeaderMissing, Refusal::HeaderRepeated));
        assert_eq!(outcomes["x-github-delivery"], (Refusal::IdMissing, Refusal::IdMalformed));
    }

    #[test]
    fn no_header_value_panics() {
        no_value_panics(&github(), documented);
    }
}
