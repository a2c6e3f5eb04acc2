//! `multipart/form-data` without its boundary.

/// What stands between the delimiters of a multipart body: the parts, and what is before and after
/// them.
///
/// The body is its segments joined by `--boundary`, so a list of all of them forgets the boundary
/// and nothing else. That is only done where every reader finds the same delimiters: wherever the
/// boundary occurs at all, it is one.
pub(super) struct Segments<'a> {
    body: &'a [u8],
    boundary: Search<'a>,
}

impl<'a> Segments<'a> {
    /// `None` unless the boundary is plain and every occurrence of it is a delimiter, and only the
    /// last one closes.
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
            // Not past the boundary: an occurrence that overlaps this one is no delimiter and must
            // be seen.
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

/// RFC 2046 allows 1 to 70. One character alone would occur all over a body; 70 bounds what a
/// mismatch can cost.
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=70;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_segments_are_what_stands_between_the_delimiters() {
        let body = b"preamble\r\n--x-y\r\na: b\r\n\r\none\r\n--x-y \t\r\n\r\n\r\n--x-y--\r\nepilogue";
        let expected: [&[u8]; 4] =
            [b"preamble\r\n", b"\r\na: b\r\n\r\none\r\n", b" \t\r\n\r\n\r\n", b"--\r\nepilogue"];
        assert_eq!(segments(body, "x-y"), Some(expected.map(<[u8]>::to_vec).to_vec()));
        assert_eq!(segments(b"--xy--", "xy"), Some(vec![b"".to_vec(), b"--".to_vec()]));
    }

    #[test]
    fn a_boundary_that_occurs_anywhere_else_leaves_no_segments() {
        let bodies = [
            "",
            "a",
            "--xy",
            "--xy\r\n",
            "--xy\r\na\r\n",
            "--xy\r\n\r\nxy\r\n--xy--",
            "--xy\r\n\r\n--xyz\r\n--xy--",
            "--xy\r\n\n--xy\r\n\r\n--xy--",
            "--xy\n\r\n--xy--",
            "a--xy\r\n\r\n--xy--",
            "--xy\r\n\r\n--xy--\r\n--xy--",
            "--xy--\r\n--xy\r\n",
            "--xy--xy",
            "--xy\r\n\r\nxy--xy\r\n--xy--",
            "\n--xy--",
            "-xy--",
            "--xy\r\r\n--xy--",
            "--xy\r\n\r\n--xy--\r\n--xy",
        ];
        for body in bodies {
            assert_eq!(segments(body.as_bytes(), "xy"), None, "{body:?}");
        }
    }

    #[test]
    fn a_boundary_that_overlaps_itself_leaves_no_segments() {
        assert_eq!(segments(b"--q--q--q", "q--q"), None);
        assert!(segments(b"--q--q--", "q--q").is_some());
    }

    #[test]
    fn an_odd_boundary_leaves_no_segments() {
        for boundary in ["", "x", "x y", "xé", "x\"", "x\\y", "x\r\n", &"x".repeat(71)] {
            assert_eq!(
                segments(format!("--{boundary}\r\n\r\n--{boundary}--").as_bytes(), boundary),
                None,
                "{boundary:?}"
            );
        }
        for boundary in ["xy", "----", "a'()+_,-./:=?Z9", &"x".repeat(69)] {
            let body = format!("--{boundary}\r\n\r\n\r\n--{boundary}--");
            assert_eq!(segments(body.as_bytes(), boundary).is_some(), boundary != "----", "{boundary:?}");
        }
    }

    #[test]
    fn hostile_bodies_take_linear_time() {
        let long = "a".repeat(69);
        let bodies = [
            (format!("{}--xy--", "--xy\r\n\r\n".repeat(1_000_000)), "xy"),
            (format!("--xy{}\r\n--xy--", "\r\n\r\n--xy".repeat(1_000_000)), "xy"),
            ("a".repeat(2 << 20), &long),
            ("b".to_owned() + &"a".repeat(2 << 20), &("b".to_owned() + &long)),
            ("--".repeat(1 << 20), "----"),
        ];
        for (body, boundary) in &bodies {
            let start = Instant::now();
            segments(body.as_bytes(), boundary);
            assert!(start.elapsed().as_secs() < 30, "{}", &body[..20]);
        }
    }

    proptest! {
        #[test]
        fn segments_are_there_if_and_only_if_every_boundary_delimits(
            pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..9),
            end in proptest::sample::select(&["", "\r\n--aa--", "--"][..]),
        ) {
            let body = pieces.concat() + end;
            let body = body.as_bytes();
            let places: Vec<_> = (0..body.len()).filter(|&place| body[place..].starts_with(b"aa")).collect();
            let closes = |place: &usize| body[place + 2..].starts_with(b"--");
            let delimits = |place: &usize| {
                let text = std::str::from_utf8(&body[place + 2..]).unwrap();
                (*place == 2 && body.starts_with(b"--") || body[..*place].ends_with(b"\r\n--"))
                    && (closes(place) || text.trim_start_matches([' ', '\t']).starts_with("\r\n"))
            };
            let last_closes = match places.split_last() {
                Some((last, rest)) => closes(last) && !rest.iter().any(closes),
                None => false,
            };
            let found = segments(body, "aa");
            prop_assert_eq!(found.is_some(), last_closes && places.iter().all(delimits));
            if let Some(found) = found {
                prop_assert_eq!(found.join(&b"--aa"[..]), body);
            }
        }

        #[test]
        fn a_search_finds_what_a_plain_one_finds(
            text in proptest::collection::vec(b'a'..b'd', 0..60),
            pattern in proptest::collection::vec(b'a'..b'c', 2..5),
        ) {
            for from in 0..=text.len() {
                let plain = (from..text.len()).find(|&place| text[place..].starts_with(&pattern));
                prop_assert_eq!(Search::new(&pattern).find(&text, from), plain);
            }
        }
    }

    fn segments(body: &[u8], boundary: &str) -> Option<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        Segments::of(body, boundary)?.for_each(|segment| found.push(segment.to_vec()));
        Some(found)
    }

    const PIECES: &[&str] =
        &["\r\n--aa\r\n", "--aa\r\n", "\r\n--aa \t\r\n", "a", "-", "\r\n", " ", "aa", "b", "\r\n--aa--"];
}
