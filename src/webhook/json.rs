//! One member of a JSON body, without building the rest of it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// The string under this name at the top of a JSON object. `None` if the body is not one JSON
/// object, or the name stands there not at all, or twice, or with another type.
pub(super) fn top_level_string(body: &[u8], name: &str) -> Option<String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = json.deserialize_map(Member(name)).ok()?;
    json.end().ok()?;
    found
}

struct Member<'a>(&'a str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = map.next_key()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value::<String>()?).is_some() {
                return Err(A::Error::custom("the member stands there twice"));
            }
        }
        Ok(found)
    }
}

struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::top_level_string;

    #[test]
    fn the_member_is_found_at_the_top_only() {
        let body = br#"{"object":{"id":"inner"},"list":[{"id":1}],"\u0069d":"evt_1","z":null}"#;
        assert_eq!(top_level_string(body, "id").as_deref(), Some("evt_1"));
    }

    #[test]
    fn anything_else_has_no_such_member() {
        let bodies: [&[u8]; 11] = [
            b"",
            b"{}",
            b"[]",
            b"\"id\"",
            br#"{"id":1}"#,
            br#"{"id":null}"#,
            br#"{"id":"a","id":"a"}"#,
            br#"{"id":"a"} x"#,
            br#"{"id":"a"#,
            b"{\"id\":\"\xff\"}",
            br#"{"object":{"id":"a"}}"#,
        ];
        for body in bodies {
            assert_eq!(top_level_string(body, "id"), None, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn depth_does_not_overflow_the_stack() {
        let mut body = br#"{"id":"a","deep":"#.to_vec();
        body.extend(std::iter::repeat_n(b'[', 1_000_000));
        assert_eq!(top_level_string(&body, "id"), None);
    }

    proptest! {
        #[test]
        fn no_body_panics(body in any::<Vec<u8>>(), text in "[\\[\\]{}\",:ida0-9 ]{0,60}") {
            drop(top_level_string(&body, "id"));
            drop(top_level_string(text.as_bytes(), "id"));
        }
    }
}
