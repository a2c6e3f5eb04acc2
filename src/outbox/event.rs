//! What is published.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::error::Error;

/// Something that has happened, for others to know.
///
/// Its id is the message's id at every delivery: a consumer recognises a second one by it, with an
/// [`Inbox`](crate::Inbox) for example. It is a UUID of version 7, drawn when the event is made,
/// unless one is [given](Self::with_id): `event.id().get_timestamp()` tells when. What else a consumer
/// should know of times belongs into the payload; nothing is added to that.
///
/// # Examples
///
/// ```
/// use tower_idempotency::outbox::Event;
///
/// # fn example() -> Result<(), tower_idempotency::Error> {
/// let event = Event::new("payment", 17, "payment.created").json(&serde_json::json!({"amount": 1250}))?;
/// assert_eq!(event.aggregate_id(), "17");
/// # Ok(())
/// # }
/// # example().unwrap();
/// ```
#[derive(Clone, PartialEq)]
#[must_use]
pub struct Event {
    pub(crate) id: Uuid,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    pub(crate) payload: Payload,
    pub(crate) headers: BTreeMap<String, String>,
}

/// What an event carries.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// Nothing but its type.
    Empty,
    /// A JSON text. Its value is kept, its spelling is not: the table stores `jsonb`.
    Json(Bytes),
    /// Bytes, kept as they are.
    Bytes(Bytes),
}

impl Event {
    /// An event without a payload: what it is about, and what has happened to it.
    ///
    /// Events of one aggregate, the type and id together, are delivered in the order in which they
    /// were published. Each of the three has 1 to 255 bytes.
    #[expect(clippy::needless_pass_by_value, reason = "a number or a UUID, as it stands in a row")]
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl ToString,
        event_type: impl Into<String>,
    ) -> Self {
        Self {
            id: Uuid::now_v7(),
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.to_string(),
            event_type: event_type.into(),
            payload: Payload::Empty,
            headers: BTreeMap::new(),
        }
    }

    /// Carries a value as JSON.
    ///
    /// It is stored as `jsonb`, so that a consumer gets the same value, with its members in another
    /// order maybe. Where the bytes count, for a signature over them, use [`bytes`](Self::bytes).
    ///
    /// # Errors
    ///
    /// If the value cannot be written as JSON, or has the character U+0000, which `jsonb` refuses.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self, Error> {
        let text = serde_json::to_vec(value)
            .map_err(|error| Error::value("the payload of an event cannot be written as JSON", error))?;
        if has_escaped_nul(&text) {
            return Err(Error::misconfigured(
                "the payload of an event has the character U+0000, which Postgres does not store as JSON; publish it as bytes",
            ));
        }
        self.payload = Payload::Json(text.into());
        Ok(self)
    }

    /// Carries bytes, as they are.
    ///
    /// In the table they are a JSON string with their base64, and the column `encoding` says so: who
    /// reads the table through change data capture decodes it. A [`Relay`](super::Relay) delivers
    /// the bytes themselves.
    pub fn bytes(mut self, bytes: impl Into<Bytes>) -> Self {
        self.payload = Payload::Bytes(bytes.into());
        self
    }

    /// Adds a header, in place of one with the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Gives it an id, where there is one to keep. Two events with one id are an error of the
    /// second, as long as the first waits.
    pub const fn with_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// The message's id, the same at every delivery.
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// The kind of thing it is about, such as `payment`.
    pub fn aggregate_type(&self) -> &str {
        &self.aggregate_type
    }

    /// Which one of them.
    pub fn aggregate_id(&self) -> &str {
        &self.aggregate_id
    }

    /// What has happened, such as `payment.created`.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// What it carries.
    pub const fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Its headers, by name.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Refused here, and not by the table: an error there would abort the transaction.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let names = [&self.aggregate_type, &self.aggregate_id, &self.event_type];
        if names.iter().any(|name| name.is_empty() || name.len() > LONGEST_NAME) {
            return Err(Error::misconfigured(
                "an event's aggregate type, aggregate id and type have 1 to 255 bytes each",
            ));
        }
        let headers = self.headers.iter().flat_map(|(name, value)| [name, value]);
        if names.into_iter().chain(headers).any(|text| text.contains('\0')) {
            return Err(Error::misconfigured("an event's names and headers must not contain U+0000"));
        }
        Ok(())
    }
}

impl Payload {
    /// The JSON text, or the bytes; none if it is empty.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Json(bytes) | Self::Bytes(bytes) => bytes,
        }
    }

    /// The media type: of JSON, of bytes, or none.
    pub const fn content_type(&self) -> Option<&'static str> {
        match self {
            Self::Empty => None,
            Self::Json(_) => Some("application/json"),
            Self::Bytes(_) => Some("application/octet-stream"),
        }
    }
}

/// In a JSON text: a backslash always has its character with it, so `\\u0000` is not one.
fn has_escaped_nul(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        rest = &rest[at + 1..];
        if rest.starts_with(b"u0000") {
            return true;
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Payload {
    /// Its size only: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, size) = match self {
            Self::Empty => return f.write_str("Empty"),
            Self::Json(bytes) => ("Json", bytes.len()),
            Self::Bytes(bytes) => ("Bytes", bytes.len()),
        };
        write!(f, "{name}({size} bytes)")
    }
}

/// A B-tree entry takes about 2.7 kB at most, and Debezium's columns have 255 characters.
const LONGEST_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_in_json_is_refused_and_a_backslash_before_u0000_is_not() {
        let event = || Event::new("a", 1, "t");
        assert!(event().json("\0").is_err());
        assert!(event().json(&["ok", "x\\\0"]).is_err());
        assert!(event().json("\\u0000").is_ok());
        assert!(event().json("\\\\u0000 \" \u{1}").is_ok());
    }

    #[test]
    fn names_have_a_length_and_no_nul() {
        assert!(Event::new("a", 1, "t").check().is_ok());
        assert!(Event::new("", 1, "t").check().is_err());
        assert!(Event::new("a", "", "t").check().is_err());
        assert!(Event::new("a", "i".repeat(256), "t").check().is_err());
        assert!(Event::new("a", "\0", "t").check().is_err());
        assert!(Event::new("a", 1, "t").header("h", "\0").check().is_err());
    }

    #[test]
    fn a_debug_output_has_no_payload() {
        let event = Event::new("a", 1, "t").bytes("secret").header("h", "secret");
        assert!(!format!("{event:?} {:?}", event.payload()).contains("secret"));
    }
}
