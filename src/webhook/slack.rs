//! Slack.
//!
//! The rule: [Verifying requests from Slack][verify]. `X-Slack-Signature` is `v0=` and the HMAC of
//! `v0:timestamp:body` in hexadecimal digits, under the app's signing secret;
//! `X-Slack-Request-Timestamp` is to be within five minutes. An event is named by the `event_id` of
//! its body ([The Events API][events]); a failed one is tried again three times within about five
//! minutes, and hourly for a day where delayed events are on.
//!
//! [verify]: https://docs.slack.dev/authentication/verifying-requests-from-slack
//! [events]: https://docs.slack.dev/apis/events-api

use std::time::Duration;

use http::request::Parts;

use super::header::{fresh, hex, single, unix_seconds};
use super::json::top_level_string;
use super::provider::{Provider, TOLERANCE, Unverified, Verified, by_id};
use super::refusal::Refusal;
use super::secret::{ConfigError, HmacSha256Keys, Secret};
use crate::fingerprint::Fingerprint;
use crate::retention::Retention;

/// Requests of Slack.
///
/// Events are named by their `event_id`. What has none (the `url_verification` of a new address,
/// slash commands, interactive payloads) is named by the hash of its body; Slack does not send it
/// again.
///
/// Slack waits for three seconds. Leave longer work to the outbox or to a queue.
#[derive(Debug)]
pub struct Slack {
    keys: HmacSha256Keys,
    tolerance: Duration,
}

impl Slack {
    /// With the app's signing secret, or several while they rotate.
    ///
    /// # Errors
    ///
    /// If there is none, or one could not protect anything.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        Ok(Self { keys: HmacSha256Keys::new(secrets)?, tolerance: TOLERANCE })
    }

    /// How far the timestamp may be from the service's clock, in both directions. Defaults to five
    /// minutes, as Slack recommends.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    fn signed<'a>(&self, parts: &'a Parts, now: i64) -> Result<Signed<'a>, Refusal> {
        let signature = single(&parts.headers, "x-slack-signature")?;
        let signature = signature.strip_prefix("v0=").and_then(hex).ok_or(Refusal::HeaderMalformed)?;
        let timestamp = single(&parts.headers, "x-slack-request-timestamp")?;
        let seconds = unix_seconds(timestamp)?;
        fresh(seconds, now, self.tolerance)?;
        Ok(Signed { timestamp, seconds, signature })
    }
}

struct Signed<'a> {
    timestamp: &'a str,
    seconds: i64,
    signature: [u8; 32],
}

impl Provider for Slack {
    fn name(&self) -> &str {
        "slack"
    }

    fn precheck(&self, parts: &Parts, now: i64) -> Result<(), Refusal> {
        self.signed(parts, now).map(drop)
    }

    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
        let signed = self.signed(delivery.parts, delivery.now)?;
        let message = [b"v0:", signed.timestamp.as_bytes(), b":", delivery.body];
        self.keys.verify(&message, &[signed.signature])?;
        let verified = match top_level_string(delivery.body, "event_id") {
            Some(id) => Verified::new(id),
            None => Verified::by_body(delivery.body),
        };
        Ok(verified.at(signed.seconds))
    }

    /// Two days: one more than Slack sends delayed events.
    fn retention(&self) -> Retention {
        Retention::days(2)
    }

    /// By the id alone: it is signed, and the rest of the envelope is Slack's to change.
    fn fingerprint(&self) -> Fingerprint {
        by_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::testing::{Delivery, each_header_is_needed_once, no_value_panics};

    const NOW: i64 = 1_531_420_618;

    fn slack() -> Slack {
        Slack::new(["8f742231b10e8888abcd99yyyzzz85a5"]).unwrap()
    }

    /// The vector of Slack's documentation.
    fn documented() -> Delivery {
        Delivery::new(
            b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        )
        .at(NOW)
        .header("x-slack-request-timestamp", "1531420618")
        .header("x-slack-signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503")
    }

    #[test]
    fn the_documented_request_verifies() {
        let verified = documented().verify(&slack()).unwrap();
        assert_eq!(verified.timestamp, Some(NOW));
        assert_eq!(verified.id, crate::webhook::body_hash(documented().body_bytes()));
    }

    #[test]
    fn an_event_is_named_by_its_id() {
        let body = br#"{"type":"event_callback","event":{"event_id":"no"},"event_id":"Ev0PV52K21"}"#;
        let keys = HmacSha256Keys::new(["8f742231b10e8888abcd99yyyzzz85a5"]).unwrap();
        let signature = keys.sign(&[b"v0:1531420618:", body]).next().unwrap();
        let signature: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
        let delivery = documented().body(body).replace("x-slack-signature", &format!("v0={signature}"));
        assert_eq!(delivery.verify(&slack()), Ok(Verified::new("Ev0PV52K21").at(NOW)));
    }

    #[test]
    fn another_body_or_timestamp_does_not_verify() {
        assert_eq!(documented().body(b"token=x").verify(&slack()), Err(Refusal::SignatureMismatch));
        let later = documented().replace("x-slack-request-timestamp", "1531420619");
        assert_eq!(later.verify(&slack()), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn the_timestamp_is_bounded_on_both_sides() {
        assert_eq!(documented().at(NOW + 301).verify(&slack()), Err(Refusal::TimestampOld));
        assert_eq!(documented().at(NOW - 301).verify(&slack()), Err(Refusal::TimestampAhead));
        assert!(documented().at(NOW + 300).verify(&slack()).is_ok());
        let strict = slack().tolerance(Duration::ZERO);
        assert!(documented().verify(&strict).is_ok());
        assert_eq!(documented().at(NOW + 1).verify(&strict), Err(Refusal::TimestampOld));
    }

    #[test]
    fn headers_are_needed_once() {
        for (name, outcome) in each_header_is_needed_once(&slack(), documented) {
            assert_eq!(outcome, (Refusal::HeaderMissing, Refusal::HeaderRepeated), "{name}");
        }
    }

    #[test]
    fn no_header_value_panics() {
        no_value_panics(&slack(), documented);
    }
}
