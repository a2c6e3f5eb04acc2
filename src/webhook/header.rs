//! What the providers' headers have in common, read strictly.
//!
//! Signed text has one spelling: a timestamp that a parser reads more kindly than the signature was
//! made over is a timestamp that nobody has signed.

use std::time::Duration;

use http::HeaderMap;

use super::refusal::Refusal;

/// The value of a header that stands there once.
///
/// # Errors
///
/// If it is absent, stands there twice, or is not visible ASCII.
pub fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refusal> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or(Refusal::HeaderMissing)?;
    if lines.next().is_some() {
        return Err(Refusal::HeaderRepeated);
    }
    line.to_str().map_err(|_| Refusal::HeaderMalformed)
}

/// Seconds since 1970, in decimal digits and nothing else: no sign, no leading zero, no exponent.
///
/// # Errors
///
/// [`Refusal::TimestampMalformed`], for everything else and for what does not fit.
pub fn unix_seconds(text: &str) -> Result<i64, Refusal> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    if !plain {
        return Err(Refusal::TimestampMalformed);
    }
    text.parse().map_err(|_| Refusal::TimestampMalformed)
}

/// Whether a timestamp is near enough, in the past and in the future. A tolerance of zero means the
/// same second.
///
/// # Errors
///
/// [`Refusal::TimestampOld`] or [`Refusal::TimestampAhead`].
pub fn fresh(timestamp: i64, now: i64, tolerance: Duration) -> Result<(), Refusal> {
    if Duration::from_secs(timestamp.abs_diff(now)) <= tolerance {
        Ok(())
    } else if timestamp < now {
        Err(Refusal::TimestampOld)
    } else {
        Err(Refusal::TimestampAhead)
    }
}

/// `N` bytes in hexadecimal digits, in lower or upper case.
pub fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

/// `N` bytes in the standard alphabet of base64, padded.
pub fn base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    use ::base64::Engine as _;
    let mut bytes = [0; N];
    if text.len() != N.div_ceil(3) * 4 {
        return None;
    }
    let decoded = ::base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    if decoded.len() != N {
        return None;
    }
    bytes.copy_from_slice(&decoded);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_one_spelling_is_a_timestamp() {
        for text in [
            "",
            "-1",
            "+1",
            "01",
            "00",
            "1e9",
            "1.0",
            " 1",
            "1 ",
            "0x1",
            "1_000",
            "\u{661}",
            "-0",
            "--1",
            "-9223372036854775808",
            "9223372036854775808",
            "99999999999999999999999999",
            "1,2",
            "NaN",
        ] {
            assert_eq!(unix_seconds(text), Err(Refusal::TimestampMalformed), "{text:?}");
        }
        assert_eq!(unix_seconds("0"), Ok(0));
        assert_eq!(unix_seconds("1614265330"), Ok(1_614_265_330));
        assert_eq!(unix_seconds("9223372036854775807"), Ok(i64::MAX));
    }

    #[test]
    fn the_tolerance_is_exact_on_both_sides() {
        let five_minutes = Duration::from_secs(300);
        assert_eq!(fresh(700, 1000, five_minutes), Ok(()));
        assert_eq!(fresh(699, 1000, five_minutes), Err(Refusal::TimestampOld));
        assert_eq!(fresh(1300, 1000, five_minutes), Ok(()));
        assert_eq!(fresh(1301, 1000, five_minutes), Err(Refusal::TimestampAhead));
    }

    #[test]
    fn a_tolerance_of_zero_means_zero() {
        assert_eq!(fresh(1000, 1000, Duration::ZERO), Ok(()));
        assert_eq!(fresh(999, 1000, Duration::ZERO), Err(Refusal::TimestampOld));
        assert_eq!(fresh(1001, 1000, Duration::ZERO), Err(Refusal::TimestampAhead));
    }

    #[test]
    fn the_ends_of_time_are_compared_without_overflow() {
        assert_eq!(fresh(i64::MAX, i64::MIN, Duration::from_secs(1)), Err(Refusal::TimestampAhead));
        assert_eq!(fresh(i64::MIN, i64::MAX, Duration::from_secs(1)), Err(Refusal::TimestampOld));
        assert_eq!(fresh(i64::MAX, i64::MIN, Duration::MAX), Ok(()));
    }

    #[test]
    fn a_header_that_stands_there_twice_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(single(&headers, "a"), Err(Refusal::HeaderMissing));
        headers.append("a", HeaderValue::from_static("x"));
        assert_eq!(single(&headers, "a"), Ok("x"));
        headers.append("a", HeaderValue::from_static("x"));
        assert_eq!(single(&headers, "a"), Err(Refusal::HeaderRepeated));
        headers.insert("a", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(single(&headers, "a"), Err(Refusal::HeaderMalformed));
    }

    #[test]
    fn base64_has_one_spelling() {
        assert_eq!(base64::<1>("AA=="), Some([0]));
        for text in ["AA", "AB==", "AA=", "AA== ", "A-==", "AAA=", "AAAA", "===="] {
            assert_eq!(base64::<1>(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_as_a_timestamp_is_written_the_same(text in any::<String>()) {
            if let Ok(seconds) = unix_seconds(&text) {
                prop_assert_eq!(seconds.to_string(), text);
                prop_assert!(seconds >= 0);
            }
        }

        #[test]
        fn every_second_since_1970_is_read(seconds in 0_i64..) {
            prop_assert_eq!(unix_seconds(&seconds.to_string()), Ok(seconds));
        }

        #[test]
        fn digits_with_noise_never_panic(text in "[-+0-9eE. ]{0,24}") {
            let _ = unix_seconds(&text);
        }

        #[test]
        fn freshness_never_panics(timestamp: i64, now: i64, tolerance: u64) {
            let expected = i128::from(timestamp).abs_diff(i128::from(now)) <= u128::from(tolerance);
            prop_assert_eq!(fresh(timestamp, now, Duration::from_secs(tolerance)).is_ok(), expected);
        }

        #[test]
        fn hex_is_read_back(bytes: [u8; 32], text in any::<String>()) {
            let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(hex(&lower), Some(bytes));
            prop_assert_eq!(hex(&lower.to_uppercase()), Some(bytes));
            let _ = hex::<4>(&text);
            let _ = base64::<4>(&text);
        }
    }
}
