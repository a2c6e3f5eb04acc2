//! Secrets, and the HMAC over them.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::zeroize::Zeroize as _;
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

use super::refusal::Refusal;

/// A secret shared with a provider. Its `Debug` does not show it, and its memory is overwritten
/// when it is dropped.
pub struct Secret(SecretSlice<u8>);

impl Secret {
    fn copied(bytes: &[u8]) -> Self {
        // Into a box at once: a vector that grows would leave copies behind.
        Self(SecretSlice::from(bytes.to_vec()))
    }

    pub(super) fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Self::copied(bytes)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::copied(text.as_bytes())
    }
}

impl From<&String> for Secret {
    fn from(text: &String) -> Self {
        Self::copied(text.as_bytes())
    }
}

impl From<Vec<u8>> for Secret {
    fn from(mut bytes: Vec<u8>) -> Self {
        let secret = Self::copied(&bytes);
        bytes.zeroize();
        secret
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret, or another setting of a provider, that would not protect anything. It says what to do,
/// and shows nothing of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(crate) &'static str);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ConfigError {}

/// One or more secrets for HMAC-SHA256. With several, each of them is right: add the new one, change
/// it at the provider, then take the old one away.
pub struct HmacSha256Keys(Vec<Secret>);

impl HmacSha256Keys {
    /// Takes the secrets as they are: the bytes of the text are the key.
    ///
    /// # Errors
    ///
    /// If there is none, or one is empty, or one begins or ends with white space, which is the line
    /// end of a file more often than part of a secret.
    pub fn new<S: Into<Secret>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let secrets: Vec<Secret> = secrets.into_iter().map(Into::into).collect();
        for secret in &secrets {
            well_formed(secret.expose())?;
        }
        if secrets.is_empty() {
            return Err(NONE);
        }
        Ok(Self(secrets))
    }

    /// For keys that have been decoded and checked; also none.
    pub(super) const fn decoded(keys: Vec<Secret>) -> Self {
        Self(keys)
    }

    /// Whether one of the signatures is the HMAC of the message under one of the secrets. The
    /// message is the concatenation of its parts. Compares in constant time.
    ///
    /// # Errors
    ///
    /// [`Refusal::SignatureMismatch`].
    pub fn verify(&self, message: &[&[u8]], signatures: &[[u8; 32]]) -> Result<(), Refusal> {
        let right = self.0.iter().any(|secret| {
            let mac = mac(secret, message);
            signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
        });
        if right { Ok(()) } else { Err(Refusal::SignatureMismatch) }
    }

    /// The HMAC under each of the secrets.
    pub(super) fn sign(&self, message: &[&[u8]]) -> impl Iterator<Item = [u8; 32]> {
        self.0.iter().map(|secret| mac(secret, message).finalize().into_bytes().into())
    }
}

impl fmt::Debug for HmacSha256Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HmacSha256Keys({} keys)", self.0.len())
    }
}

fn mac(secret: &Secret, message: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(secret.expose()).expect("BUG: HMAC takes keys of any length");
    for part in message {
        mac.update(part);
    }
    mac
}

pub(super) fn well_formed(secret: &[u8]) -> Result<(), ConfigError> {
    match (secret.first(), secret.last()) {
        (Some(first), Some(last)) if first.is_ascii_whitespace() || last.is_ascii_whitespace() => {
            Err(ConfigError(
                "a webhook secret begins or ends with white space; trim the line that it was read from",
            ))
        }
        (Some(_), Some(_)) => Ok(()),
        _ => Err(ConfigError(
            "a webhook secret is empty, and anyone could sign with it; is the environment variable set?",
        )),
    }
}

pub(super) const NONE: ConfigError =
    ConfigError("there is no webhook secret; give one, or several while they rotate");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_protects_nothing_is_refused() {
        for secret in ["", " ", "\n", "secret\n", "\tsecret", " secret"] {
            assert!(HmacSha256Keys::new([secret]).is_err(), "{secret:?}");
            assert!(HmacSha256Keys::new(["good", secret]).is_err(), "{secret:?}");
        }
        assert_eq!(HmacSha256Keys::new(Vec::<Secret>::new()).unwrap_err(), NONE);
        assert!(HmacSha256Keys::new([vec![0_u8, 159, 146, 150]]).is_ok());
    }

    /// RFC 4231, test case 2.
    #[test]
    fn the_hmac_is_that_of_the_rfc() {
        let keys = HmacSha256Keys::new(["another", "Jefe"]).unwrap();
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let signature = super::super::header::hex(expected).unwrap();
        let message: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert_eq!(keys.verify(&message, &[[0; 32], signature]), Ok(()));
        assert_eq!(keys.verify(&message[..1], &[signature]), Err(Refusal::SignatureMismatch));
        assert_eq!(keys.verify(&message, &[]), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn debug_shows_no_secret() {
        let keys = HmacSha256Keys::new(["hunter2"]).unwrap();
        let shown = format!("{keys:?} {:?}", Secret::from("hunter2"));
        assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
    }
}
