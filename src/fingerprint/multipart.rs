//! `multipart/form-data` without its boundary.

/// What stands between the delimiters of a multipart body: the parts, and what is before and after them.
///
/// The body is its segments joined by `--boundary`, so a list of all of them forgets the boundary and nothing else.
/// That is only done where every reader finds the same delimiters: wherever the boundary occurs at all, it is one.
pub(super) struct Segments<'a> {
    body: &'a [u8],
    boundary: Search<'a>,
}

impl<'a> Segments<'a> {
    /// `None` unless the boundary is plain and every occurrence of it is a delimiter, and only the last one closes.
    pub(super) fn of(body: &'a [u8], boundary: &'a str) -> Option<Self> {
        let boundary = boundary.as_bytes();
        if !LENGTHS.contains(&boundary.len()) || !boundary.iter().all(|&byte| is_plain(byte)) {
            return None;
        }
        let segments = Self { body, boundary: Search::new(boundary) };
        let mut closed = false;
        let mut at = 0;
        while let Some(found) = segments.boundary.find(body, at) {
            let (before, after) = (&body[..found], &body[found + boundary.len()..]);
            if closed || !(before == b"--" || before.ends_with(b"\r\n--")) {
                return None;
            }
            closed = after.starts_with(b"--");
            let padding = after.iter().take_while(|byte| b" \t".contains(byte)).count();
            if !(closed || after[padding..].starts_with(b"\r\n")) {
                return None;
            }
            // Not past the boundary: an occurrence that overlaps this one is no delimiter and must be seen.
            at = found + 1;
        }
        closed.then_some(segments)
    }

    pub(super) fn for_each(&self, mut f: impl FnMut(&'a [u8])) {
        let mut start = 0;
        while let Some(found) = self.boundary.find(self.body, start) {
            f(&self.body[start..found - 2]);
            start = found + self.boundary.0.len();
        }
        f(&self.body[start..]);
    }
}

/// A search that skips ahead by what the last byte of the window allows (Horspool).
struct Search<'a>(&'a [u8], [u8; 256]);

impl<'a> Search<'a> {
    fn new(pattern: &'a [u8]) -> Self {
        let last = pattern.len() - 1;
        let mut skips = [pattern.len() as u8; 256];
        for (at, &byte) in pattern[..last].iter().enumerate() {
            skips[usize::from(byte)] = (last - at) as u8;
        }
        Self(pattern, skips)
    }

    fn find(&self, text: &[u8], mut from: usize) -> Option<usize> {
        let Self(pattern, skips) = self;
        while let Some(window) = text.get(from..from + pattern.len()) {
            if window == *pattern {
                return Some(from);
            }
            from += usize::from(skips[usize::from(window[pattern.len() - 1])]);
        }
        None
    }
}

/// The characters of RFC 2046's `bchars`, less the space.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte)
}

/// RFC 2046 allows 1 to 70. One character alone would occur all over a body; 70 bounds what a mismatch can cost.
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=70;
