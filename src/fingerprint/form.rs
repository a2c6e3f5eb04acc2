//! `application/x-www-form-urlencoded` in a normal form.

/// A form whose every percent escape is well-formed.
///
/// The normal form is a form again: every byte stands for itself, except that `%`, `&`, `=` and `+` are escaped where
/// they do not separate. Two forms have the same one if and only if they have the same pairs in the same order, where
/// a name without `=` differs from one with an empty value, and an empty pair counts.
pub(super) struct Form<'a>(&'a [u8]);

impl<'a> Form<'a> {
    /// `None` if there is a malformed escape: it stands for itself in some decoders and is an error in others.
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
