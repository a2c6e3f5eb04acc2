//! The fingerprint itself.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;

use super::transcript::{BodyForm, Domain, Transcript};
use super::{Fingerprint, json};

impl Fingerprint {
    /// The fingerprint that a layer with this rule stores for a request.
    ///
    /// For tests of a rule: two requests count as the same if and only if their fingerprints are equal.
    /// The bytes are those of the record's column; another version of this crate may write others.
    ///
    /// The layer takes path and query from the request as it came in, before a router has taken off a
    /// prefix.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Request;
    /// use tower_idempotency::Fingerprint;
    ///
    /// let rule = Fingerprint::normalized().ignoring("/sent_at");
    /// let of = |body: &'static str| {
    ///     let request = Request::post("/payments").header("content-type", "application/json");
    ///     let (parts, body) = request.body(Bytes::from(body)).unwrap().into_parts();
    ///     rule.of(&parts, &body)
    /// };
    /// assert_eq!(of(r#"{"amount": 5, "sent_at": 1}"#), of(r#"{"sent_at":2,"amount":5}"#));
    /// assert_ne!(of(r#"{"amount": 5}"#), of(r#"{"amount": 5.0}"#));
    /// ```
    pub fn of(
        &self,
        parts: &Parts,
        body: &Bytes,
    ) -> impl AsRef<[u8]> + Copy + Eq + fmt::Debug + Send + Sync + use<> {
        self.digest(parts, &parts.uri, body)
    }
}

/// A fingerprint as it is stored: one byte of version, then 32 bytes of SHA-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(pub(super) [u8; 33]);

impl Digest {
    /// The fingerprint of an operation's input outside HTTP; no HTTP request has the same.
    pub(crate) fn of_json_input(json: &[u8]) -> Self {
        let mut transcript = Transcript::new(Domain::Input);
        match json::Outline::of(json, &[]) {
            Ok(outline) => {
                transcript.tag(BodyForm::Json);
                outline.write(&mut |bytes| transcript.bytes(bytes));
            }
            Err(_) => {
                transcript.tag(BodyForm::Raw);
                transcript.bytes(json);
            }
        }
        transcript.finish()
    }

    /// The bytes to store.
    pub(crate) fn as_bytes(&self) -> &[u8; 33] {
        &self.0
    }

    /// Whether a stored fingerprint is this one. One of a version we do not know is not: its hash
    /// says nothing.
    pub(crate) fn matches(&self, stored: &[u8]) -> bool {
        self.0 == stored
    }
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
