//! Sending by the Standard Webhooks specification.

use std::fmt;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::zeroize::Zeroizing;

use super::secret::{ConfigError, HmacSha256Keys, NONE, Secret};
use super::standard::decoded;
use crate::key::IdempotencyKey;

/// What a sender signs with: secrets `whsec_…`, shared with one receiver, or private keys `whsk_…`.
///
/// With several, each signs, and a receiver that knows one of them is content: that is how a sender
/// rotates.
pub struct SigningKeys {
    shared: HmacSha256Keys,
    private: Vec<SigningKey>,
}

impl SigningKeys {
    /// Takes the keys in the specification's text form.
    ///
    /// # Errors
    ///
    /// If there is none, or one lacks its prefix, cannot be decoded, or is not of the length that
    /// the specification asks for.
    pub fn new<S: Into<Secret>>(keys: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let (mut shared, mut private) = (Vec::new(), Vec::new());
        for key in keys {
            let key: Secret = key.into();
            match key.expose().strip_prefix(b"whsk_") {
                Some(text) => private.push(private_key(text)?),
                None => shared.push(decoded(&key)?),
            }
        }
        if shared.is_empty() && private.is_empty() {
            return Err(NONE);
        }
        Ok(Self { shared: HmacSha256Keys::decoded(shared), private })
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys").finish_non_exhaustive()
    }
}

/// A message that cannot be signed so that receivers could tell its parts from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsignable(&'static str);

impl fmt::Display for Unsignable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsignable {}

/// The headers `webhook-id`, `webhook-timestamp` and `webhook-signature` for one attempt to send a
/// message.
///
/// The id is the message's, the same on every attempt: an event's id. The timestamp is the
/// attempt's, in seconds since 1970. The body is the bytes that go over the wire.
///
/// # Errors
///
/// If the id is not 1 to 255 visible ASCII characters without a dot, or the timestamp is before
/// 1970.
///
/// # Examples
///
/// ```
/// use tower_idempotency::webhook::{SigningKeys, sign};
///
/// let keys = SigningKeys::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// let headers = sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, br#"{"test": 2432232314}"#)?;
/// assert_eq!(headers["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
/// assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sign(keys: &SigningKeys, id: &str, timestamp: i64, body: &[u8]) -> Result<HeaderMap, Unsignable> {
    // What receivers can take as a key, and no dot: it is what separates the signed parts.
    if IdempotencyKey::new(id).is_err() || id.contains('.') {
        return Err(Unsignable("a message's id is 1 to 255 visible ASCII characters without a dot"));
    }
    if timestamp < 0 {
        return Err(Unsignable("a message's timestamp counts seconds since 1970"));
    }
    let seconds = timestamp.to_string();
    let message: [&[u8]; 5] = [id.as_bytes(), b".", seconds.as_bytes(), b".", body];
    let shared = keys.shared.sign(&message).map(|mac| format!("v1,{}", encode(&mac)));
    let mut signatures: Vec<String> = shared.collect();
    if !keys.private.is_empty() {
        let message = message.concat();
        let private = keys.private.iter();
        signatures.extend(private.map(|key| format!("v1a,{}", encode(&key.sign(&message).to_bytes()))));
    }
    let headers = [(ID, id), (TIMESTAMP, &seconds), (SIGNATURE, &signatures.join(" "))];
    let headers = headers.map(|(name, value)| {
        let value = HeaderValue::from_str(value).map_err(|_| Unsignable("a header cannot carry this"))?;
        Ok((name, value))
    });
    headers.into_iter().collect()
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A seed and the public key that follows from it, as the reference libraries write it; or the seed
/// alone.
fn private_key(text: &[u8]) -> Result<SigningKey, ConfigError> {
    const WRONG: ConfigError =
        ConfigError("a webhook private key is `whsk_` and 64 bytes in base64, and this one is not");
    let bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| WRONG)?);
    if let Ok(pair) = bytes.as_slice().try_into() {
        return SigningKey::from_keypair_bytes(pair).map_err(|_| WRONG);
    }
    bytes.as_slice().try_into().map(SigningKey::from_bytes).map_err(|_| WRONG)
}

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_keys_make_a_list() {
        let seed = format!("whsk_{}", encode(&[7; 32]));
        let keys =
            ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &seed];
        let headers = sign(&SigningKeys::new(keys).unwrap(), "msg", 0, b"").unwrap();
        let list = headers[&SIGNATURE].to_str().unwrap();
        let versions: Vec<_> =
            list.split(' ').filter_map(|item| item.split_once(',')).map(|it| it.0).collect();
        assert_eq!(versions, ["v1", "v1", "v1a"]);
        assert_eq!(headers[&TIMESTAMP], "0");
    }

    #[test]
    fn an_id_that_receivers_could_not_read_is_refused() {
        let keys = SigningKeys::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        for id in ["", "a.b", "a b", "\u{e9}", "a\nwebhook-id: b", &"a".repeat(256)] {
            assert!(sign(&keys, id, 0, b"").is_err(), "{id:?}");
        }
        assert!(sign(&keys, "a", -1, b"").is_err());
    }

    #[test]
    fn a_key_that_is_none_is_refused() {
        let mut torn = vec![7; 64];
        torn[63] = 1;
        for key in ["", "whsk_", "whsk_AAAA", "whpk_AAAA", "secret", &format!("whsk_{}", encode(&torn))] {
            assert!(SigningKeys::new([key]).is_err(), "{key}");
        }
        assert!(SigningKeys::new(Vec::<Secret>::new()).is_err());
    }

    #[test]
    fn debug_shows_no_key() {
        let seed = format!("whsk_{}", encode(&[7; 32]));
        let shown = format!("{:?}", SigningKeys::new([seed]).unwrap());
        assert_eq!(shown, "SigningKeys { .. }");
    }
}
