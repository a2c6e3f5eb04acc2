//! The tokens of JSON: where they end, and how a string is spelled.

use super::NotJson;

/// The end of the run of string characters from `at` on that can stand as they are.
#[inline]
pub(super) fn plain(source: &[u8], at: usize) -> usize {
    run(source, at, |word| {
        let quote = (word ^ each(b'"')).wrapping_sub(each(1));
        let backslash = (word ^ each(b'\\')).wrapping_sub(each(1));
        let control = word.wrapping_sub(each(b' '));
        (quote | backslash | control) & !word
    })
}

/// The end of the number that starts at `at`.
#[inline]
pub(super) fn number(source: &[u8], mut at: usize) -> Result<usize, NotJson> {
    at += usize::from(source[at] == b'-');
    match source.get(at) {
        Some(b'0') => at += 1,
        _ => at = digits(source, at)?,
    }
    if source.get(at) == Some(&b'.') {
        at = digits(source, at + 1)?;
    }
    if let Some(b'e' | b'E') = source.get(at) {
        at += 1 + usize::from(matches!(source.get(at + 1), Some(b'+' | b'-')));
        at = digits(source, at)?;
    }
    Ok(at)
}

/// The end of the digits from `at` on, of which there is at least one.
#[inline]
fn digits(source: &[u8], at: usize) -> Result<usize, NotJson> {
    // Zero to nine, once the bits of '0' are taken away; the sum has the high bit from ten on.
    let end = run(source, at, |word| {
        let word = word ^ each(b'0');
        ((word & each(0x7f)) + each(0x80 - 10)) | word
    });
    if end == at { Err(NotJson) } else { Ok(end) }
}

/// The end of the bytes from `at` on until the first for which `stops` sets the high bit.
///
/// A word at a time, without a branch inside: the length of a token, which no branch predictor
/// guesses, then costs no misprediction. `stops` need not be right about the bytes that come after
/// one it stops at.
#[inline(always)]
fn run(source: &[u8], mut at: usize, stops: impl Fn(u64) -> u64) -> usize {
    loop {
        let word = match source.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(word) => u64::from_le_bytes(*word),
            None => last_word(source, at),
        };
        let stops = stops(word) & each(0x80);
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
}

/// The next word, filled up with zeros after the end, which end every run.
#[cold]
fn last_word(source: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(source.iter().skip(at)).for_each(|(byte, &source)| *byte = source);
    u64::from_le_bytes(word)
}

/// A word with the same byte in all of its places.
const fn each(byte: u8) -> u64 {
    u64::MAX / 0xff * byte as u64
}

/// The character that the `\u` escape at `at` stands for, and the end of the escape: two, for a
/// surrogate pair.
pub(super) fn unicode_escape(source: &[u8], at: usize) -> Result<(char, usize), NotJson> {
    let unit = |at: usize| match source.get(at..at + 6) {
        Some([b'\\', b'u', digits @ ..]) => digits
            .iter()
            .try_fold(0, |value, &digit| Some(value * 16 + char::from(digit).to_digit(16)?))
            .ok_or(NotJson),
        _ => Err(NotJson),
    };
    let first = unit(at)?;
    if (0xD800..0xDC00).contains(&first) {
        let second = unit(at + 6)?;
        if !(0xDC00..0xE000).contains(&second) {
            return Err(NotJson);
        }
        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return Ok((char::from_u32(code).ok_or(NotJson)?, at + 12));
    }
    Ok((char::from_u32(first).ok_or(NotJson)?, at + 6))
}

/// Appends the one spelling of a character that the normal form has: itself, or where JSON wants an
/// escape, the shortest.
pub(super) fn spell(char: char, out: &mut Vec<u8>) {
    match char {
        '"' | '\\' => out.extend([b'\\', char as u8]),
        '\u{8}' => out.extend(b"\\b"),
        '\t' => out.extend(b"\\t"),
        '\n' => out.extend(b"\\n"),
        '\u{c}' => out.extend(b"\\f"),
        '\r' => out.extend(b"\\r"),
        '\0'..='\u{1f}' => {
            let hex = |digit: u32| char::from_digit(digit, 16).map_or(b'0', |digit| digit as u8);
            out.extend([b'\\', b'u', b'0', b'0', hex(char as u32 >> 4), hex(char as u32 & 15)]);
        }
        char => out.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// The spelling of a whole string, without its quotes.
pub(in super::super) fn spelling(string: &str) -> Vec<u8> {
    let mut spelling = Vec::with_capacity(string.len());
    string.chars().for_each(|char| spell(char, &mut spelling));
    spelling
}
