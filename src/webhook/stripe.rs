//! Stripe.
//!
//! The rule: [Verify webhook signatures manually][verify]. `Stripe-Signature` is a list
//! `t=seconds,v1=hex,v0=hex`: each `v1` is the HMAC of `t.body`, under the whole `whsec_…` string,
//! and there are two while the secret is rolled; `v0` is for tests, and must be ignored. The
//! tolerance is five minutes. An event is delivered again for [three days][retries] under a new
//! timestamp, by hand for up to [thirty][resend], and its `id` is what [duplicates][duplicates] are
//! told by. Its body is not: `pending_webhooks` counts down.
//!
//! [verify]: https://docs.stripe.com/webhooks#verify-manually
//! [retries]: https://docs.stripe.com/webhooks#retries
//! [resend]: https://docs.stripe.com/webhooks#manually-resend-events
//! [duplicates]: https://docs.stripe.com/webhooks#handle-duplicate-events

use std::time::Duration;

use http::request::Parts;

use super::header::{fresh, hex, single, unix_seconds};
use super::json::top_level_string;
use super::provider::{Provider, TOLERANCE, Unverified, Verified, by_id};
use super::refusal::Refusal;
use super::secret::{ConfigError, HmacSha256Keys, Secret};
use crate::fingerprint::Fingerprint;
use crate::retention::Retention;

/// Events of Stripe, of one endpoint.
///
/// Stripe sends an event to each endpoint that asks for it, under the same id: two endpoints of
/// Stripe in one service are two routes here, or two [endpoints](super::WebhookLayer::endpoint).
///
/// # Examples
///
/// ```
/// use tower_idempotency::webhook::Stripe;
///
/// // The new secret and the old one, while the old one is still good.
/// let stripe = Stripe::new(["whsec_new", "whsec_old"])?;
/// # Ok::<(), tower_idempotency::webhook::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Stripe {
    keys: HmacSha256Keys,
    tolerance: Duration,
}

impl Stripe {
    /// With the endpoint's signing secret, `whsec_` included, or several while they rotate.
    ///
    /// # Errors
    ///
    /// If there is none, or one could not protect anything.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        Ok(Self { keys: HmacSha256Keys::new(secrets)?, tolerance: TOLERANCE })
    }

    /// How far the timestamp may be from the service's clock, in both directions. Defaults to five
    /// minutes, as in Stripe's libraries. Zero means the same second, and not "any", as it does in
    /// some of them.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    fn signed<'a>(&self, parts: &'a Parts, now: i64) -> Result<Signed<'a>, Refusal> {
        let signed = parse(single(&parts.headers, "stripe-signature")?)?;
        fresh(signed.seconds, now, self.tolerance)?;
        Ok(signed)
    }
}

impl Provider for Stripe {
    fn name(&self) -> &str {
        "stripe"
    }

    fn precheck(&self, parts: &Parts, now: i64) -> Result<(), Refusal> {
        self.signed(parts, now).map(drop)
    }

    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
        let signed = self.signed(delivery.parts, delivery.now)?;
        self.keys.verify(&[signed.timestamp.as_bytes(), b".", delivery.body], &signed.signatures)?;
        let id = top_level_string(delivery.body, "id").ok_or(Refusal::IdMissing)?;
        Ok(Verified::new(id).at(signed.seconds))
    }

    /// 31 days: one more than an event can be sent again by hand.
    fn retention(&self) -> Retention {
        Retention::days(31)
    }

    /// By the id alone: it is signed, and `pending_webhooks` differs between attempts.
    fn fingerprint(&self) -> Fingerprint {
        by_id()
    }
}

struct Signed<'a> {
    timestamp: &'a str,
    seconds: i64,
    signatures: Vec<[u8; 32]>,
}

fn parse(header: &str) -> Result<Signed<'_>, Refusal> {
    let mut timestamp = None;
    let mut signatures = Vec::new();
    for (place, item) in header.split(',').enumerate() {
        let (scheme, value) = item.split_once('=').ok_or(Refusal::HeaderMalformed)?;
        match scheme {
            _ if place == MOST_ITEMS => return Err(Refusal::HeaderMalformed),
            // Two of them: which one has been signed?
            "t" if timestamp.replace(value).is_some() => return Err(Refusal::HeaderMalformed),
            "v1" => signatures.push(hex(value).ok_or(Refusal::HeaderMalformed)?),
            _ => {}
        }
    }
    let timestamp = timestamp.ok_or(Refusal::HeaderMalformed)?;
    if signatures.is_empty() {
        return Err(Refusal::HeaderMalformed);
    }
    Ok(Signed { timestamp, seconds: unix_seconds(timestamp)?, signatures })
}

/// A timestamp, a signature for each of a few secrets, and schemes to come.
const MOST_ITEMS: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::webhook::testing::{Delivery, each_header_is_needed_once, no_value_panics};

    const NOW: i64 = 1_492_774_577;
    const BODY: &[u8] = br#"{"id":"evt_1","object":"event","pending_webhooks":1}"#;

    fn stripe() -> Stripe {
        Stripe::new(["whsec_test"]).unwrap()
    }

    fn v1(secret: &str, body: &[u8]) -> String {
        let keys = HmacSha256Keys::new([secret]).unwrap();
        let signature = keys.sign(&[format!("{NOW}.").as_bytes(), body]).next().unwrap();
        signature.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn with(header: &str) -> Delivery {
        Delivery::new(BODY).at(NOW).header("stripe-signature", header)
    }

    /// Stripe documents no vector; this one is
    /// `printf '%s.%s' 1492774577 "$body" | openssl dgst -sha256 -hmac whsec_test`.
    const SIGNATURE: &str = "4f30d24601aecd383ab7acaf5f28e0e9022c471e8e36a1a46d2bda7281653d8d";

    #[test]
    fn an_event_verifies_and_is_named_by_its_id() {
        let delivery = with(&format!("t={NOW},v1={SIGNATURE},v0=00"));
        assert_eq!(delivery.verify(&stripe()), Ok(Verified::new("evt_1").at(NOW)));
    }

    #[test]
    fn any_v1_may_match_and_any_secret() {
        let (good, bad) = (v1("whsec_test", BODY), v1("whsec_other", BODY));
        for header in [format!("t={NOW},v1={bad},v1={good}"), format!("v1={good},v1={bad},t={NOW}")] {
            assert!(with(&header).verify(&stripe()).is_ok(), "{header}");
            let rotated = Stripe::new(["whsec_new", "whsec_test"]).unwrap();
            assert!(with(&header).verify(&rotated).is_ok(), "{header}");
        }
    }

    #[test]
    fn v0_is_ignored() {
        let good = v1("whsec_test", BODY);
        let only = with(&format!("t={NOW},v0={good}"));
        assert_eq!(only.verify(&stripe()), Err(Refusal::HeaderMalformed));
        let beside = with(&format!("t={NOW},v0={good},v1={}", "0".repeat(64)));
        assert_eq!(beside.verify(&stripe()), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn the_whole_secret_is_the_key() {
        let without_prefix = with(&format!("t={NOW},v1={}", v1("test", BODY)));
        assert_eq!(without_prefix.verify(&stripe()), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn the_header_has_one_form() {
        let good = v1("whsec_test", BODY);
        for header in [
            String::new(),
            format!("v1={good}"),
            format!("t={NOW}"),
            format!("t={NOW},t={NOW},v1={good}"),
            format!("t={NOW},v1={good},"),
            format!("t={NOW};v1={good}"),
            format!("t={NOW},v1={good}00"),
            format!("t={NOW}{}", format!(",v1={good}").repeat(16)),
        ] {
            assert_eq!(with(&header).verify(&stripe()), Err(Refusal::HeaderMalformed), "{header}");
        }
        for seconds in ["+1492774577", "01492774577", "1492774577.0", "-9223372036854775808", "1e9", ""] {
            let delivery = with(&format!("t={seconds},v1={good}"));
            assert_eq!(delivery.verify(&stripe()), Err(Refusal::TimestampMalformed), "{seconds}");
        }
    }

    #[test]
    fn the_timestamp_is_bounded_on_both_sides() {
        let delivery = || with(&format!("t={NOW},v1={SIGNATURE}"));
        assert!(delivery().at(NOW + 300).verify(&stripe()).is_ok());
        assert_eq!(delivery().at(NOW + 301).verify(&stripe()), Err(Refusal::TimestampOld));
        assert_eq!(delivery().at(NOW - 301).verify(&stripe()), Err(Refusal::TimestampAhead));
        let strict = || stripe().tolerance(Duration::ZERO);
        assert!(delivery().verify(&strict()).is_ok());
        assert_eq!(delivery().at(NOW + 1).verify(&strict()), Err(Refusal::TimestampOld));
    }

    #[test]
    fn a_verified_body_without_an_id_is_not_an_event() {
        for body in [&b"{}"[..], b"[]", br#"{"id":1}"#, b"\xff\xfe"] {
            let delivery = with(&format!("t={NOW},v1={}", v1("whsec_test", body))).body(body);
            assert_eq!(delivery.verify(&stripe()), Err(Refusal::IdMissing));
        }
    }

    #[test]
    fn headers_are_needed_once() {
        for (name, outcome) in
            each_header_is_needed_once(&stripe(), || with(&format!("t={NOW},v1={SIGNATURE}")))
        {
            assert_eq!(outcome, (Refusal::HeaderMissing, Refusal::HeaderRepeated), "{name}");
        }
    }

    #[test]
    fn no_header_value_panics() {
        no_value_panics(&stripe(), || with(&format!("t={NOW},v1={SIGNATURE}")));
    }

    proptest! {
        #[test]
        fn no_list_panics(header in "([tv][01]?=?[0-9a-f+-]{0,66},?){0,20}") {
            drop(parse(&header));
        }
    }
}
