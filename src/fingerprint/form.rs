//! `application/x-www-form-urlencoded` in a normal form.

/// A form whose every percent escape is well-formed.
///
/// The normal form is a form again: every byte stands for itself, except that `%`, `&`, `=` and `+`
/// are escaped where they do not separate. Two forms have the same one if and only if they have the
/// same pairs in the same order, where a name without `=` differs from one with an empty value, and
/// an empty pair counts.
pub(super) struct Form<'a>(&'a [u8]);

impl<'a> Form<'a> {
    /// `None` if there is a malformed escape: it stands for itself in some decoders and is an error
    /// in others.
    pub(super) fn of(body: &'a [u8]) -> Option<Self> {
        let mut at = 0;
        while let Some(found) = body[at..].iter().position(|&byte| byte == b'%') {
            at += found;
            escape(body, at)?;
            at += 3;
        }
        Some(Self(body))
    }

    pub(super) fn write(&self, sink: &mut impl FnMut(&[u8])) {
        let Self(body) = *self;
        let (mut run, mut at) = (0, 0);
        let mut in_value = false;
        while let Some(&byte) = body.get(at) {
            let (length, spelling): (usize, &[u8]) = match byte {
                b'%' => match escape(body, at) {
                    Some(byte) => (3, spelling(byte)),
                    None => (1, b"%"),
                },
                b'+' => (1, b" "),
                b'=' if in_value => (1, b"%3D"),
                byte => {
                    in_value = byte == b'=' || (in_value && byte != b'&');
                    at += 1;
                    continue;
                }
            };
            sink(&body[run..at]);
            sink(spelling);
            at += length;
            run = at;
        }
        sink(&body[run..]);
    }
}

/// The byte that the escape at `at` stands for.
fn escape(body: &[u8], at: usize) -> Option<u8> {
    let digit = |at| char::from(*body.get(at)?).to_digit(16);
    u8::try_from(digit(at + 1)? * 16 + digit(at + 2)?).ok()
}

fn spelling(byte: u8) -> &'static [u8] {
    match byte {
        b'%' => b"%25",
        b'&' => b"%26",
        b'+' => b"%2B",
        b'=' => b"%3D",
        byte => std::slice::from_ref(&BYTES[usize::from(byte)]),
    }
}

/// Every byte, to be borrowed from.
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = byte as u8;
        byte += 1;
    }
    bytes
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_spelling_of_escapes_does_not_count() {
        assert_eq!(normal_form(b"a+b=%63%20d&%c3%A9=%7e~"), Some(b"a b=c d&\xc3\xa9=~~".to_vec()));
        assert_eq!(normal_form(b"%26%3D%2b%25=a=b+%26"), Some(b"%26%3D%2B%25=a%3Db %26".to_vec()));
        assert_eq!(normal_form(b""), Some(vec![]));
    }

    #[test]
    fn a_malformed_escape_has_no_normal_form() {
        for body in ["%", "a=%", "a=%2", "a=%zz", "a=%2g", "%%20", "a=1&b=%+1", "%\u{fe0f}41"] {
            assert_eq!(normal_form(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn what_a_handler_could_tell_apart_differs() {
        let forms: [&[u8]; 20] = [
            b"", b"&", b"=", b"=&", b"&=", b"a", b"a=", b"a&", b"&a", b"a=&", b"a&&b", b"a&b", b"b&a",
            b"a=b", b"a%3Db", b"a%26b", b"a=b=c", b"a=b%26c", b"a%2Bb", b"a%2525",
        ];
        for (place, one) in forms.iter().enumerate() {
            for other in &forms[..place] {
                assert_ne!(
                    normal_form(one),
                    normal_form(other),
                    "{} {}",
                    one.escape_ascii(),
                    other.escape_ascii()
                );
            }
        }
    }

    proptest! {
        #[test]
        fn two_forms_match_if_and_only_if_their_pairs_do(one in form(), other in form()) {
            if let (Some(ours), Some(others)) = (normal_form(&one), normal_form(&other)) {
                prop_assert_eq!(ours == others, pairs(&one) == pairs(&other));
                prop_assert_eq!(normal_form(&ours), Some(ours.clone()), "not a fixed point");
                prop_assert_eq!(pairs(&ours), pairs(&one));
            }
        }
    }

    fn form() -> impl Strategy<Value = Vec<u8>> {
        let piece = proptest::sample::select(
            &["a", "=", "&", "+", " ", "%61", "%3d", "%3D", "%26", "%2B", "%25", "%20", "%2"][..],
        );
        proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat().into_bytes())
    }

    fn normal_form(body: &[u8]) -> Option<Vec<u8>> {
        let mut written = Vec::new();
        Form::of(body)?.write(&mut |bytes| written.extend_from_slice(bytes));
        Some(written)
    }

    /// The pairs of a form as a reader decodes them.
    fn pairs(body: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let decode = |text: &str| {
            let mut bytes = text.bytes();
            let mut decoded = Vec::new();
            while let Some(byte) = bytes.next() {
                decoded.push(match byte {
                    b'+' => b' ',
                    b'%' => {
                        let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                        u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                    }
                    byte => byte,
                });
            }
            decoded
        };
        let body = std::str::from_utf8(body).unwrap();
        let pair = |pair: &str| match pair.split_once('=') {
            Some((name, value)) => (decode(name), Some(decode(value))),
            None => (decode(pair), None),
        };
        body.split('&').map(pair).collect()
    }
}
