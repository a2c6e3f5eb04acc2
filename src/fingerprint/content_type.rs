//! `Content-Type`, as far as a fingerprint needs it.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::transcript::Transcript;
use super::values;

/// The request's content type: parsed if there is one, and it is well-formed; otherwise as it stands.
pub(super) enum ContentType<'a> {
    Parsed { essence: String, parameters: Vec<(String, &'a str)> },
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

    /// Writes the content type, with `boundary` or, where the body does not depend on it, only the name of it.
    ///
    /// Type and parameter names are written in lower case, values as they are spelled. The order of parameters is
    /// kept: a client does not change it from one attempt to the next, and with a repeated name it has a meaning.
    pub(super) fn write(&self, without_boundary: bool, transcript: &mut Transcript) {
        match self {
            Self::Parsed { essence, parameters } => {
                transcript.bytes(&[1]);
                transcript.field(essence.as_bytes());
                transcript.count(parameters.len());
                for (name, value) in parameters {
                    let left_out = without_boundary && name == "boundary";
                    transcript.field(name.as_bytes());
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
        match self {
            Self::Parsed { essence, .. } => {
                (essence == "application/json" || essence.ends_with("+json")) && self.is_utf8()
            }
            Self::Verbatim { .. } => false,
        }
    }

    pub(super) fn is_form(&self) -> bool {
        match self {
            Self::Parsed { essence, .. } => essence == "application/x-www-form-urlencoded" && self.is_utf8(),
            Self::Verbatim { .. } => false,
        }
    }

    /// The boundary of `multipart/form-data`, if there is one and it is plain.
    pub(super) fn form_data_boundary(&self) -> Option<&'a str> {
        match self {
            Self::Parsed { essence, parameters } if essence == "multipart/form-data" => {
                let mut boundaries = parameters.iter().filter(|(name, _)| name == "boundary");
                match (boundaries.next(), boundaries.next()) {
                    (Some((_, value)), None) => Some(unquoted(value)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Whether no parameter says that the bytes are in an encoding in which they mean something else.
    fn is_utf8(&self) -> bool {
        match self {
            Self::Parsed { parameters, .. } => parameters
                .iter()
                .filter(|(name, _)| name == "charset")
                .all(|(_, value)| unquoted(value).eq_ignore_ascii_case("utf-8")),
            Self::Verbatim { .. } => false,
        }
    }
}

fn parse(line: &str) -> Option<ContentType<'_>> {
    let (kind, rest) = token(line)?;
    let (subtype, mut rest) = token(rest.strip_prefix('/')?)?;
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches(BLANK);
        if rest.is_empty() {
            break;
        }
        let (name, after) = token(rest.strip_prefix(';')?.trim_start_matches(BLANK))?;
        let after = after.strip_prefix('=')?;
        let (value, after) = if after.starts_with('"') { quoted(after)? } else { token(after)? };
        parameters.push((name.to_ascii_lowercase(), value));
        rest = after;
    }
    let essence = format!("{}/{}", kind.to_ascii_lowercase(), subtype.to_ascii_lowercase());
    Some(ContentType::Parsed { essence, parameters })
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

const BLANK: [char; 2] = [' ', '\t'];
