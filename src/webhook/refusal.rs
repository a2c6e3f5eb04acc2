//! Why a delivery was not taken, for telemetry and never for the sender.

use std::fmt;

/// Why a delivery was refused before any work was done for it.
///
/// The sender is not told: whoever tries to forge a delivery learns nothing from the response. The
/// reason is the `refusal` of the request's span and of a log line, and an extension of the
/// response, for middleware outside.
///
/// | word | meaning |
/// |---|---|
/// | `header-missing` | no signature, timestamp or id where the provider puts it |
/// | `header-repeated` | one of these headers stands there twice |
/// | `header-malformed` | one of these headers does not have the provider's form |
/// | `timestamp-malformed` | the timestamp is not a number of seconds in plain decimal digits |
/// | `timestamp-old` | the timestamp is further in the past than the tolerance |
/// | `timestamp-ahead` | the timestamp is further in the future than the tolerance |
/// | `signature-mismatch` | no signature is right for any of the secrets |
/// | `id-missing` | the signature is right, but nothing names the delivery |
/// | `id-malformed` | the delivery's id cannot be a key |
/// | `other` | a rule of a [`Provider`](super::Provider) of your own |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// No signature, timestamp or id where the provider puts it.
    HeaderMissing,
    /// One of these headers stands there twice.
    HeaderRepeated,
    /// One of these headers does not have the provider's form.
    HeaderMalformed,
    /// The timestamp is not a number of seconds in plain decimal digits.
    TimestampMalformed,
    /// The timestamp is further in the past than the tolerance.
    TimestampOld,
    /// The timestamp is further in the future than the tolerance.
    TimestampAhead,
    /// No signature is right for any of the secrets.
    SignatureMismatch,
    /// The signature is right, but nothing names the delivery.
    IdMissing,
    /// The delivery's id cannot be a key.
    IdMalformed,
    /// A rule of a provider of your own.
    Other,
}

impl Refusal {
    /// The word in the span and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HeaderMissing => "header-missing",
            Self::HeaderRepeated => "header-repeated",
            Self::HeaderMalformed => "header-malformed",
            Self::TimestampMalformed => "timestamp-malformed",
            Self::TimestampOld => "timestamp-old",
            Self::TimestampAhead => "timestamp-ahead",
            Self::SignatureMismatch => "signature-mismatch",
            Self::IdMissing => "id-missing",
            Self::IdMalformed => "id-malformed",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}
