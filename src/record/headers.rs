//! A response's headers, in a row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{self, HeaderMap, HeaderName};

pub(super) type Line<'a> = (&'a HeaderName, &'a [u8]);

/// A format byte; then for each line the name's length (u16, big-endian), the name, the value's
/// length (u32, big-endian), the value. `None` if it is longer than what is kept.
pub(super) fn encode(lines: &[Line<'_>]) -> Option<Vec<u8>> {
    let mut bytes = vec![FORMAT];
    for (name, value) in lines {
        bytes.extend(u16::try_from(name.as_str().len()).ok()?.to_be_bytes());
        bytes.extend(name.as_str().as_bytes());
        bytes.extend(u32::try_from(value.len()).ok()?.to_be_bytes());
        bytes.extend(*value);
    }
    (bytes.len() <= HEADERS_LIMIT).then_some(bytes)
}

/// The lines in their order. `None` for bytes that are not of this format.
pub(crate) fn decode(bytes: &[u8]) -> Option<HeaderMap> {
    let (&FORMAT, mut rest) = bytes.split_first()? else { return None };
    let mut headers = HeaderMap::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk()?;
        let (name, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        let (length, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        rest = after;
        let name = HeaderName::from_bytes(name).ok()?;
        headers.try_append(name, value.try_into().ok()?).ok()?;
    }
    Some(headers)
}

#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(headers) = decode(bytes) {
        let lines: Vec<Line<'_>> = headers.iter().map(|(name, value)| (name, value.as_bytes())).collect();
        if let Some(again) = encode(&lines) {
            assert_eq!((again.len(), decode(&again)), (bytes.len(), Some(headers)));
        }
    }
}

/// Which of a response's headers are stored.
#[derive(Clone, Default)]
pub(crate) struct HeaderRules {
    keep: Vec<HeaderName>,
    omit: Vec<HeaderName>,
    warned: Arc<AtomicBool>,
}

impl HeaderRules {
    pub(crate) fn keep(&mut self, name: HeaderName) {
        self.omit.retain(|other| *other != name);
        self.keep.push(name);
    }

    pub(crate) fn omit(&mut self, name: HeaderName) {
        self.keep.retain(|other| *other != name);
        self.omit.push(name);
    }

    pub(super) fn kept<'a>(&self, headers: &'a HeaderMap) -> Vec<Line<'a>> {
        for name in MISPLACED {
            if headers.contains_key(&name) && !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    header = name.as_str(),
                    "recording a header that a layer inside of the idempotency layer has set; compression and CORS belong outside, see the guide page on layer order"
                );
            }
        }
        let connection: Vec<String> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let stored = |name: &HeaderName| {
            self.keep.contains(name)
                || !(self.omit.contains(name)
                    || OMITTED.contains(&name.as_str())
                    || connection.iter().any(|other| other == name.as_str()))
        };
        headers
            .iter()
            .filter(|(name, _)| stored(name))
            .map(|(name, value)| (name, value.as_bytes()))
            .collect()
    }
}

pub(super) const FORMAT: u8 = 1;

/// A value in a row, and read with each replay.
const HEADERS_LIMIT: usize = 262_144;

/// What belongs to one transfer, one moment or one caller, and not to the operation's result.
const OMITTED: [&str; 26] = [
    // hop by hop (RFC 9110, section 7.6.1)
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // set anew by the server for each response
    "date",
    "age",
    "content-length",
    // secrets of one caller's session; opt in with `.keep_header(SET_COOKIE)`
    "set-cookie",
    "set-cookie2",
    // about this attempt, wrong for the next one
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
    "proxy-authentication-info",
    "retry-after",
    // trace and request ids
    "x-request-id",
    "request-id",
    "x-correlation-id",
    "traceparent",
    "tracestate",
    "tracing-id",
    "x-amzn-trace-id",
    "x-b3-traceid",
    "server-timing",
];

/// Recording one of these tells that a layer stands on the wrong side.
const MISPLACED: [HeaderName; 2] = [header::CONTENT_ENCODING, header::ACCESS_CONTROL_ALLOW_ORIGIN];

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderValue, StatusCode};
    use proptest::prelude::*;

    use super::*;
    use crate::record::Stored;

    proptest! {
        #[test]
        fn all_headers_that_http_allows_survive(
            lines in prop::collection::vec(
                ("x-[a-c0-9_!#$%&'*+.^`|~-]{0,3}", prop::collection::vec(0x20_u8..=0xff, 0..40)),
                0..20,
            ),
        ) {
            let mut map = HeaderMap::new();
            for (name, value) in &lines {
                let value: Vec<u8> = value.iter().copied().filter(|byte| *byte != 0x7f).collect();
                map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(&value).unwrap());
            }
            let back = stored(&map, &HeaderRules::default());
            prop_assert!(map.iter().eq(back.iter()));
        }

        #[test]
        fn bytes_that_decode_are_what_their_headers_encode_to(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                // Near the format: lengths that fit, or nearly.
                prop::collection::vec((0_u8..4, "[a-cA ]{0,3}", 0_u8..4, "[a-c\n]{0,3}"), 0..4).prop_map(|lines| {
                    let mut bytes = vec![FORMAT];
                    for (name_length, name, value_length, value) in lines {
                        bytes.extend([0, name_length]);
                        bytes.extend(name.bytes());
                        bytes.extend([0, 0, 0, value_length]);
                        bytes.extend(value.bytes());
                    }
                    bytes
                }),
            ],
        ) {
            if let Some(map) = decode(&bytes) {
                let lines: Vec<Line<'_>> = map.iter().map(|(name, value)| (name, value.as_bytes())).collect();
                let again = encode(&lines).unwrap();
                prop_assert_eq!(again.len(), bytes.len());
                prop_assert!(decode(&again) == Some(map));
            }
        }
    }

    fn headers(lines: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    fn stored(map: &HeaderMap, rules: &HeaderRules) -> HeaderMap {
        decode(&Stored::new(StatusCode::OK, map, rules, None, None).headers).unwrap()
    }

    #[test]
    fn order_repeats_and_bytes_of_headers_survive() {
        let map = headers(&[
            ("x-a", b"1"),
            ("location", b"/p/1"),
            ("x-a", b"2"),
            ("x-b", b"\xff\xfe"),
            ("x-c", b""),
        ]);
        let back = stored(&map, &HeaderRules::default());
        assert!(map.iter().eq(back.iter()));
    }

    #[test]
    fn headers_of_one_transfer_are_not_stored() {
        let map = headers(&[
            ("connection", b"x-hop, close"),
            ("x-hop", b"1"),
            ("date", b"now"),
            ("set-cookie", b"a=b"),
            ("retry-after", b"3"),
            ("content-length", b"5"),
            ("x-request-id", b"r"),
            ("etag", b"\"e\""),
        ]);
        let back = stored(&map, &HeaderRules::default());
        assert_eq!(back.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["etag"]);
    }

    #[test]
    fn a_service_can_keep_and_omit_headers() {
        let mut rules = HeaderRules::default();
        rules.keep(header::SET_COOKIE);
        rules.omit(header::ETAG);
        let back = stored(&headers(&[("set-cookie", b"a=b"), ("etag", b"e")]), &rules);
        assert_eq!(back.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["set-cookie"]);
    }

    #[test]
    fn too_many_headers_leave_the_location() {
        let mut map = headers(&[("location", b"/p/1")]);
        for _ in 0..300 {
            map.append("x-big", HeaderValue::from_bytes(&[b'a'; 1000]).unwrap());
        }
        let kept = Stored::new(StatusCode::OK, &map, &HeaderRules::default(), Some(Bytes::new()), None);
        assert_eq!(kept.body, None);
        assert_eq!(decode(&kept.headers).unwrap().len(), 1);
    }

    #[test]
    fn bytes_of_another_format_are_refused() {
        let whole =
            Stored::new(StatusCode::OK, &headers(&[("x-a", b"1")]), &HeaderRules::default(), None, None)
                .headers;
        for cut in 2..whole.len() {
            assert!(decode(&whole[..cut]).is_none(), "{cut}");
        }
        assert!(decode(&[]).is_none());
        assert!(decode(&[2]).is_none());
        assert!(decode(&[1, 255, 255, 1]).is_none());
        assert!(decode(&[1, 0, 1, b'a', 255, 255, 255, 255]).is_none());
        assert!(decode(&[1, 0, 1, b' ', 0, 0, 0, 0]).is_none());
    }
}
