//! Public keys: the sender signs, and nobody who can verify can forge.

use std::fmt;

use ed25519_dalek::{Signature, VerifyingKey};

use super::refusal::Refusal;
use super::secret::{ConfigError, NONE};

/// One or more Ed25519 public keys. With several, each of them is right.
#[derive(Clone)]
pub struct Ed25519Keys(Vec<VerifyingKey>);

impl Ed25519Keys {
    /// Takes the keys in their 32 bytes.
    ///
    /// # Errors
    ///
    /// If there is none, or one is not a point of the curve, or one is of small order, for which
    /// there are signatures that fit any message.
    pub fn new(keys: impl IntoIterator<Item = [u8; 32]>) -> Result<Self, ConfigError> {
        let keys: Vec<VerifyingKey> = keys.into_iter().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(NONE) } else { Ok(Self(keys)) }
    }

    /// For keys that have been checked; also none.
    pub(super) const fn checked(keys: Vec<VerifyingKey>) -> Self {
        Self(keys)
    }

    /// Whether one of the signatures is right for the message under one of the keys. The message is
    /// the concatenation of its parts.
    ///
    /// It is hashed once for each pair of key and signature: bound the number of signatures.
    ///
    /// # Errors
    ///
    /// [`Refusal::SignatureMismatch`].
    pub fn verify(&self, message: &[&[u8]], signatures: &[[u8; 64]]) -> Result<(), Refusal> {
        if self.0.is_empty() || signatures.is_empty() {
            return Err(Refusal::SignatureMismatch);
        }
        let message = message.concat();
        let right = self.0.iter().any(|key| {
            let mut signatures = signatures.iter();
            signatures.any(|bytes| key.verify_strict(&message, &Signature::from_bytes(bytes)).is_ok())
        });
        if right { Ok(()) } else { Err(Refusal::SignatureMismatch) }
    }
}

impl fmt::Debug for Ed25519Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ed25519Keys({} keys)", self.0.len())
    }
}

pub(super) fn key(bytes: [u8; 32]) -> Result<VerifyingKey, ConfigError> {
    match VerifyingKey::from_bytes(&bytes) {
        Ok(key) if !key.is_weak() => Ok(key),
        _ => Err(ConfigError("an Ed25519 public key is not one that can verify anything")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::header::hex;

    /// RFC 8032, section 7.1, test 2.
    #[test]
    fn the_signature_is_that_of_the_rfc() {
        let key = hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c").unwrap();
        let keys = Ed25519Keys::new([key]).unwrap();
        let signature = hex(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        )
        .unwrap();
        assert_eq!(keys.verify(&[&[0x72]], &[[0; 64], signature]), Ok(()));
        assert_eq!(keys.verify(&[&[0x73]], &[signature]), Err(Refusal::SignatureMismatch));
        assert_eq!(keys.verify(&[], &[signature]), Err(Refusal::SignatureMismatch));
    }

    #[test]
    fn a_key_that_fits_any_message_is_refused() {
        let mut neutral = [0; 32];
        neutral[0] = 1;
        for weak in [[0; 32], neutral] {
            assert!(Ed25519Keys::new([weak]).is_err());
        }
        assert_eq!(Ed25519Keys::new([]).unwrap_err(), NONE);
    }
}
