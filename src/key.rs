//! Header to key.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use sfv::BareItemFromInput;
use sfv::visitor::{Ignored, ItemVisitor, ParameterVisitor, parameter_visitor_with};
use sha2::{Digest as _, Sha256};

use crate::rejection::RejectionKind;

/// The request header that carries the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A client's name for one business intent: 1 to 255 visible ASCII characters, case kept.
///
/// In a header it stands as an RFC 9651 String, `"k"`, whose parameters are ignored, or bare, `k`.
/// A bare value has no parameters: `k;a=1` is a key of five characters.
///
/// Its `Debug` shows a short hash. Whoever has a key can ask for the response stored under it.
///
/// # Examples
///
/// ```
/// use tower_idempotency::IdempotencyKey;
///
/// let key = IdempotencyKey::new("order-4711-payment")?;
/// assert_eq!(key.as_str(), "order-4711-payment");
/// assert!(IdempotencyKey::new("two words").is_err());
/// # Ok::<(), tower_idempotency::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Takes a key as it is, without quotes.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 255 bytes, or has anything but visible ASCII in it.
    pub fn new(key: &str) -> Result<Self, InvalidKey> {
        let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        if key.is_empty() || key.len() > MAX_LENGTH || !visible {
            return Err(InvalidKey(()));
        }
        Ok(Self(key.into()))
    }

    /// Takes the value of a header line: an RFC 9651 String, whose parameters are ignored, or a
    /// bare value. Both forms of one key are the same key.
    fn from_header(value: &[u8]) -> Result<Self, InvalidKey> {
        let value = value.trim_ascii();
        if value.first() == Some(&b'"') {
            let key =
                sfv::Parser::new(value).parse_item_with_visitor(StringItem).map_err(|_| InvalidKey(()))?;
            return Self::new(&key);
        }
        // A comma, a quote or white space inside: an intermediary may have joined two lines.
        let joined = value.iter().any(|byte| matches!(byte, b',' | b'"'));
        let bare = std::str::from_utf8(value).map_err(|_| InvalidKey(()))?;
        if joined { Err(InvalidKey(())) } else { Self::new(bare) }
    }

    /// The key itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Eight hexadecimal digits of its SHA-256, as in the logs.
    pub fn short_hash(&self) -> String {
        let hash = Sha256::digest(self.0.as_bytes());
        hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey(#{})", self.short_hash())
    }
}

/// A value that is no [`IdempotencyKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKey(());

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an idempotency key is 1 to 255 visible ASCII characters, bare or as a quoted string")
    }
}

impl std::error::Error for InvalidKey {}

struct StringItem;

impl<'de> ItemVisitor<'de> for StringItem {
    type Out = String;
    type Error = InvalidKey;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = String>, InvalidKey> {
        let BareItemFromInput::String(string) = item else { return Err(InvalidKey(())) };
        let key = string.as_str().to_owned();
        Ok(parameter_visitor_with(Ignored, move |_| Ok(key)))
    }
}

type KeyFn = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
type PolicyFn = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Where the key stands in a request, and which keys are taken.
#[derive(Clone)]
pub(crate) struct KeySource {
    pub(crate) place: Place,
    pub(crate) policy: Option<PolicyFn>,
    pub(crate) optional: bool,
}

#[derive(Clone)]
pub(crate) enum Place {
    Header(HeaderName),
    Function(KeyFn),
}

impl Default for KeySource {
    fn default() -> Self {
        Self { place: Place::Header(IDEMPOTENCY_KEY), policy: None, optional: false }
    }
}

impl KeySource {
    /// `None`: no key, and none is needed. A broken key is refused also where none is needed; it
    /// never means "unprotected".
    pub(crate) fn key(&self, parts: &Parts) -> Result<Option<IdempotencyKey>, RejectionKind> {
        let key = match &self.place {
            Place::Header(name) => from_line(&parts.headers, name)?,
            Place::Function(function) => {
                let key = function(parts).map(|key| IdempotencyKey::new(&key));
                key.transpose().map_err(|_| RejectionKind::KeyMalformed)?
            }
        };
        match (&key, &self.policy) {
            (None, _) if !self.optional => Err(RejectionKind::KeyMissing),
            (Some(key), Some(policy)) if !policy(key.as_str()) => Err(RejectionKind::KeyRefused),
            _ => Ok(key),
        }
    }
}

fn from_line(headers: &HeaderMap, name: &HeaderName) -> Result<Option<IdempotencyKey>, RejectionKind> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(RejectionKind::KeyMalformed);
    }
    IdempotencyKey::from_header(line.as_bytes()).map(Some).map_err(|_| RejectionKind::KeyMalformed)
}

#[cfg(fuzzing)]
pub(crate) fn fuzz(line: &[u8]) {
    if let Ok(key) = IdempotencyKey::from_header(line) {
        let quoted = key.as_str().replace('\\', "\\\\").replace('"', "\\\"");
        let again = IdempotencyKey::from_header(format!("\"{quoted}\"").as_bytes());
        assert_eq!(again.as_ref(), Ok(&key), "another key with its quotes");
    }
}

/// Room for every identifier that clients use (UUIDs, ULIDs, prefixed references), while tenant,
/// operation and key together stay far below what a B-tree entry may hold.
const MAX_LENGTH: usize = 255;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quoted(key: &str) -> String {
        format!("\"{}\"", key.replace('\\', r"\\").replace('"', r#"\""#))
    }

    proptest! {
        #[test]
        fn a_key_survives_its_quotes_and_is_the_same_without(key in "[!-~]{1,255}", around in "[ \t]{0,3}") {
            let line = format!("{around}{}{around}", quoted(&key));
            prop_assert_eq!(parse(line.as_bytes()), Some(key.clone()));
            let is_bare = !key.contains([',', '"']);
            // With quotes it is refused, or another key in its quotes.
            prop_assert_eq!(parse(key.as_bytes()) == Some(key), is_bare);
        }

        #[test]
        fn whatever_bytes_come_a_key_is_visible_and_bounded(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                "[\"\\\\,; a-c=]{0,20}".prop_map(String::into_bytes),
            ],
        ) {
            if let Some(key) = parse(&bytes) {
                prop_assert!(!key.is_empty() && key.len() <= MAX_LENGTH);
                prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert_eq!(parse(quoted(&key).as_bytes()), Some(key));
            }
        }
    }

    fn parse(value: &[u8]) -> Option<String> {
        IdempotencyKey::from_header(value).ok().map(|key| key.as_str().to_owned())
    }

    #[test]
    fn quoted_and_bare_are_one_key() {
        assert_eq!(parse(b"\"k-1\""), parse(b"k-1"));
        assert_eq!(parse(b"  \"k-1\"  "), Some("k-1".to_owned()));
    }

    #[test]
    fn parameters_of_a_string_are_ignored() {
        assert_eq!(parse(b"\"k\";a=1;b"), Some("k".to_owned()));
        assert_eq!(parse(b"\"k\";A=1"), None);
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(parse(br#""a\"b\\c""#), Some(r#"a"b\c"#.to_owned()));
        assert_eq!(parse(br#""a\nb""#), None);
    }

    #[test]
    fn case_is_kept() {
        assert_ne!(parse(b"AbC"), parse(b"abc"));
    }

    #[test]
    fn nothing_but_one_visible_ascii_value_is_a_key() {
        let long = [b'a'; 256];
        let bad: [&[u8]; 17] = [
            b"",
            b"\"\"",
            b"   ",
            b"\"   \"",
            b"a b",
            b"\"a b\"",
            b"a, b",
            b"a,b",
            b"\"a\", \"b\"",
            &long,
            "\u{e9}".as_bytes(),
            b"\xe9",
            b"a\0b",
            b"a\tb",
            b"\"unterminated",
            b"a\"b",
            b"\"a\" b",
        ];
        for value in bad {
            assert_eq!(parse(value), None, "{}", String::from_utf8_lossy(value));
        }
        assert!(parse(&long[..255]).is_some());
    }

    #[test]
    fn debug_does_not_show_the_key() {
        let shown = format!("{:?}", IdempotencyKey::new("secret-key").unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}
