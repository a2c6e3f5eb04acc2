//! `Content-Type`, as far as a fingerprint needs it.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::transcript::Transcript;
use super::values;

/// The request's content type: parsed if there is one, and it is well-formed; otherwise as it
/// stands.
pub(super) enum ContentType<'a> {
    Parsed { essence: &'a str, parameters: Vec<(&'a str, &'a str)> },
    Verbatim { headers: &'a HeaderMap },
}

impl<'a> ContentType<'a> {
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut lines = headers.get_all(CONTENT_TYPE).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.to_str().ok().and_then(parse),
            _ => None,
        }
        .unwrap_or(Self::Verbatim { headers })
    }

    /// Writes the content type, with `boundary` or, where the body does not depend on it, only the
    /// name of it.
    ///
    /// Type and parameter names are written in lower case, values as they are spelled. The order of
    /// parameters is kept: a client does not change it from one attempt to the next, and with a
    /// repeated name it has a meaning.
    pub(super) fn write(&self, without_boundary: bool, transcript: &mut Transcript) {
        match self {
            Self::Parsed { essence, parameters } => {
                transcript.bytes(&[1]);
                transcript.field_in_lower_case(essence);
                transcript.count(parameters.len());
                for (name, value) in parameters {
                    let left_out = without_boundary && name.eq_ignore_ascii_case("boundary");
                    transcript.field_in_lower_case(name);
                    transcript.option((!left_out).then_some(value.as_bytes()));
                }
            }
            Self::Verbatim { headers } => {
                transcript.bytes(&[0]);
                transcript.list(values(headers, &CONTENT_TYPE));
            }
        }
    }

    pub(super) fn is_json(&self) -> bool {
        let is_json = |essence: &str| {
            let suffix = essence.len().checked_sub(JSON_SUFFIX.len()).and_then(|at| essence.get(at..));
            suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(JSON_SUFFIX))
                || essence.eq_ignore_ascii_case("application/json")
        };
        self.essence().is_some_and(is_json) && self.is_utf8()
    }

    pub(super) fn is_form(&self) -> bool {
        self.is("application/x-www-form-urlencoded") && self.is_utf8()
    }

    /// The boundary of `multipart/form-data`, if there is one and it is plain.
    pub(super) fn form_data_boundary(&self) -> Option<&'a str> {
        let mut boundaries = self.is("multipart/form-data").then(|| self.parameters("boundary"))?;
        match (boundaries.next(), boundaries.next()) {
            (Some(boundary), None) => Some(boundary),
            _ => None,
        }
    }

    fn is(&self, essence: &str) -> bool {
        self.essence().is_some_and(|own| own.eq_ignore_ascii_case(essence))
    }

    fn essence(&self) -> Option<&'a str> {
        match *self {
            Self::Parsed { essence, .. } => Some(essence),
            Self::Verbatim { .. } => None,
        }
    }

    /// The values of a parameter, without the quotes around them.
    fn parameters(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let parameters = match self {
            Self::Parsed { parameters, .. } => parameters.as_slice(),
            Self::Verbatim { .. } => &[],
        };
        parameters
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| unquoted(value))
    }

    /// Whether no parameter says that the bytes are in an encoding in which they mean something
    /// else.
    fn is_utf8(&self) -> bool {
        self.parameters("charset").all(|charset| charset.eq_ignore_ascii_case("utf-8"))
    }
}

fn parse(line: &str) -> Option<ContentType<'_>> {
    let (_, rest) = token(line)?;
    let (_, mut rest) = token(rest.strip_prefix('/')?)?;
    let essence = &line[..line.len() - rest.len()];
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches(BLANK);
        if rest.is_empty() {
            return Some(ContentType::Parsed { essence, parameters });
        }
        let (name, after) = token(rest.strip_prefix(';')?.trim_start_matches(BLANK))?;
        let after = after.strip_prefix('=')?;
        let (value, after) = if after.starts_with('"') { quoted(after)? } else { token(after)? };
        parameters.push((name, value));
        rest = after;
    }
}

fn token(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !is_token(byte)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// A quoted string, with its quotes and escapes.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    let close = text.bytes().skip(1).position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => byte == b'"',
    })?;
    Some(text.split_at(close + 2))
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

const JSON_SUFFIX: &str = "+json";

const BLANK: [char; 2] = [' ', '\t'];
