//! The fingerprint itself.

use std::fmt;

use super::json;
use super::transcript::{BodyForm, Domain, Transcript};

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

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
