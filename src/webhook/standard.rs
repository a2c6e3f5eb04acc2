//! Standard Webhooks 1.0, which Svix and many others send.
//!
//! The rule: [the specification][spec]. Three headers, `webhook-id`, `webhook-timestamp` and
//! `webhook-signature`, or the same with Svix's older prefix `svix-`. What is signed is
//! `id.timestamp.body`. The signature is a list, separated by spaces: `v1,` and an HMAC in base64,
//! under a secret `whsec_…` of 24 to 64 bytes, or `v1a,` and an Ed25519 signature, for a public key
//! `whpk_…`. A message has the same id on every attempt, and a timestamp of each. The schedule that
//! the specification shows ends after three days.
//!
//! [spec]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

use std::time::Duration;

use http::HeaderMap;
use http::request::Parts;

use super::ed25519::{self, Ed25519Keys};
use super::header::{base64, fresh, single, unix_seconds};
use super::provider::{Provider, TOLERANCE, Unverified, Verified};
use super::refusal::Refusal;
use super::secret::{ConfigError, HmacSha256Keys, NONE, Secret, well_formed};

/// Messages by the Standard Webhooks specification.
///
/// An id with a `.` in it is refused: the parts of what is signed are separated by dots, so that a
/// sender of bodies of its own choice could move the boundary. The specification tells senders not
/// to make such ids.
///
/// # Examples
///
/// ```
/// use tower_idempotency::webhook::StandardWebhooks;
///
/// let sender = StandardWebhooks::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// assert!(StandardWebhooks::new(["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).is_err());
/// # Ok::<(), tower_idempotency::webhook::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct StandardWebhooks {
    shared: HmacSha256Keys,
    public: Ed25519Keys,
    tolerance: Duration,
}

impl StandardWebhooks {
    /// With the endpoint's secret (`whsec_…`) or the sender's public key (`whpk_…`), or several
    /// while they rotate.
    ///
    /// # Errors
    ///
    /// If there is none, or one lacks its prefix, cannot be decoded, or is not of the length that
    /// the specification asks for. A public key is never taken for a secret.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let (mut shared, mut public) = (Vec::new(), Vec::new());
        for secret in secrets {
            let secret: Secret = secret.into();
            if let Some(key) = secret.expose().strip_prefix(b"whpk_") {
                let key = std::str::from_utf8(key).ok().and_then(base64).ok_or(ConfigError(
                    "a webhook public key is `whpk_` and 32 bytes in base64, and this one is not",
                ))?;
                public.push(ed25519::key(key)?);
            } else {
                shared.push(decoded(&secret)?);
            }
        }
        if shared.is_empty() && public.is_empty() {
            return Err(NONE);
        }
        let (shared, public) = (HmacSha256Keys::decoded(shared), Ed25519Keys::checked(public));
        Ok(Self { shared, public, tolerance: TOLERANCE })
    }

    /// How far the timestamp may be from the service's clock, in both directions. Defaults to five
    /// minutes, as in the reference libraries.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    fn signed<'a>(&self, parts: &'a Parts, now: i64) -> Result<Signed<'a>, Refusal> {
        let [id, timestamp, signatures] = names(&parts.headers);
        let id = single(&parts.headers, id)?;
        let timestamp = single(&parts.headers, timestamp)?;
        let signatures = Signatures::parse(single(&parts.headers, signatures)?)?;
        if id.is_empty() || id.contains('.') {
            return Err(Refusal::IdMalformed);
        }
        let seconds = unix_seconds(timestamp)?;
        fresh(seconds, now, self.tolerance)?;
        Ok(Signed { id, timestamp, seconds, signatures })
    }
}

impl Provider for StandardWebhooks {
    fn name(&self) -> &str {
        "standard-webhooks"
    }

    fn precheck(&self, parts: &Parts, now: i64) -> Result<(), Refusal> {
        self.signed(parts, now).map(drop)
    }

    fn verify(&self, delivery: &Unverified<'_>) -> Result<Verified, Refusal> {
        let signed = self.signed(delivery.parts, delivery.now)?;
        let message = [signed.id.as_bytes(), b".", signed.timestamp.as_bytes(), b".", delivery.body];
        let shared = || self.shared.verify(&message, &signed.signatures.v1);
        let public = || self.public.verify(&message, &signed.signatures.v1a);
        shared().or_else(|_| public())?;
        Ok(Verified::new(signed.id).at(signed.seconds))
    }
}

struct Signed<'a> {
    id: &'a str,
    timestamp: &'a str,
    seconds: i64,
    signatures: Signatures,
}

/// The signatures by their version. What is of one version is never tried under the other.
#[derive(Debug, Default)]
struct Signatures {
    v1: Vec<[u8; 32]>,
    v1a: Vec<[u8; 64]>,
}

impl Signatures {
    fn parse(header: &str) -> Result<Self, Refusal> {
        let mut signatures = Self::default();
        for (place, item) in header.split(' ').enumerate() {
            let (version, signature) = item.split_once(',').ok_or(Refusal::HeaderMalformed)?;
            match version {
                _ if place == MOST_SIGNATURES => return Err(Refusal::HeaderMalformed),
                "v1" => signatures.v1.push(base64(signature).ok_or(Refusal::HeaderMalformed)?),
                "v1a" => signatures.v1a.push(base64(signature).ok_or(Refusal::HeaderMalformed)?),
                _ => {}
            }
        }
        if signatures.v1.is_empty() && signatures.v1a.is_empty() {
            return Err(Refusal::HeaderMalformed);
        }
        Ok(signatures)
    }
}

/// The standard's names, unless only Svix's are there.
fn names(headers: &HeaderMap) -> [&'static str; 3] {
    let standard = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let svix = ["svix-id", "svix-timestamp", "svix-signature"];
    if standard.iter().any(|name| headers.contains_key(*name)) { standard } else { svix }
}

/// A secret `whsec_…`, as the bytes that it stands for.
pub(super) fn decoded(secret: &Secret) -> Result<Secret, ConfigError> {
    use ::base64::Engine as _;
    well_formed(secret.expose())?;
    let text = secret
        .expose()
        .strip_prefix(b"whsec_")
        .ok_or(ConfigError("a Standard Webhooks secret begins with `whsec_`, and this one does not"))?;
    let bytes = ::base64::engine::general_purpose::STANDARD.decode(text);
    let key: Secret = bytes.map_err(|_| ConfigError("what follows `whsec_` is not base64"))?.into();
    if SECRET_LENGTHS.contains(&key.expose().len()) {
        Ok(key)
    } else {
        Err(ConfigError("a Standard Webhooks secret stands for 24 to 64 bytes, and this one does not"))
    }
}

/// By the specification, section "Signature scheme".
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// One for each of a few keys. Each Ed25519 signature costs a hash of the whole body, for anyone who
/// sends it.
const MOST_SIGNATURES: usize = 8;

#[cfg(test)]
#[path = "standard/tests.rs"]
mod tests;
