//! Request to fingerprint: the rule by which two requests count as the same.
//!
//! The two ways to be wrong do not cost the same. Two requests taken for one replay the wrong
//! response; one request taken for two gets a 422. So a body is only ever brought into a normal
//! form by a rule under which no two different contents meet, and whatever such a rule does not
//! cover is compared byte for byte.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use content_type::ContentType;
use pointer::Pointer;
use transcript::{BodyForm, Domain, Transcript};

pub(crate) use digest::Digest;

mod content_type;
mod digest;
mod form;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod json;
mod multipart;
mod pointer;
mod transcript;

/// The rule by which two requests count as the same.
///
/// A key that comes back with another request is refused with 422 instead of being answered with
/// the first request's response. Method, path, query, `Content-Type` and `Content-Encoding` always
/// count; the body counts by the rule chosen here. Defaults to [`Fingerprint::normalized`], because
/// clients serialize a request anew for each attempt.
///
/// A change of this rule changes the fingerprints of new requests but not those already recorded:
/// until the recorded ones expire, a retry that spans the change may be refused.
///
/// # Examples
///
/// ```
/// use http::HeaderName;
/// use tower_idempotency::Fingerprint;
///
/// let fingerprint = Fingerprint::normalized()
///     .ignoring("/sent_at")
///     .including_header(HeaderName::from_static("x-api-version"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Fingerprint {
    reading: Reading,
    headers: Vec<HeaderName>,
    ignored: Vec<Pointer>,
}

impl Fingerprint {
    /// Compares bodies by what they say rather than how it is spelled. This is the default.
    ///
    /// - JSON (`application/json`, `+json`): white space, the order of members and the spelling of
    ///   escapes do not count. Numbers count as they are written: `1.0` is not `1`, since no two
    ///   numbers may be taken for one.
    /// - `application/x-www-form-urlencoded`: the spelling of percent escapes does not count; order
    ///   and repetition do.
    /// - `multipart/form-data`: the boundary, new for each attempt, does not count; everything else
    ///   does.
    /// - Anything else is compared byte for byte, and so is a body with a `Content-Encoding`, JSON
    ///   that does not parse or that names a member twice, and a form that is malformed.
    pub fn normalized() -> Self {
        Self::reading(Reading::Normalized)
    }

    /// Compares bodies byte for byte.
    ///
    /// For clients that keep the serialized request and send the very same bytes again.
    pub fn raw() -> Self {
        Self::reading(Reading::Raw)
    }

    /// Leaves the body out, so that it is not read before the handler runs and an upload can
    /// stream.
    ///
    /// A key that comes back with another body is then answered with the first one's response: pair
    /// it with [`including_header`](Self::including_header) where the client sends a digest of the
    /// body. A refusal is not recorded if the body broke off while the handler read it.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_idempotency::Fingerprint;
    ///
    /// let upload =
    ///     Fingerprint::without_body().including_header(HeaderName::from_static("content-digest"));
    /// ```
    pub fn without_body() -> Self {
        Self::reading(Reading::Nothing)
    }

    /// Compares what `f` returns in place of the body.
    ///
    /// Method, path, query, `Content-Type` without its `boundary`, and `Content-Encoding` still
    /// count. What `f` leaves out does not: a request that differs in it alone is answered with the
    /// first one's response.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_idempotency::Fingerprint;
    ///
    /// // A signed envelope: the signature is new for each attempt, the payload before it is not.
    /// let fingerprint = Fingerprint::from_fn(|_parts, body| {
    ///     let payload = body.split(|&byte| byte == b'.').next().unwrap_or_default();
    ///     payload.to_vec()
    /// });
    /// ```
    pub fn from_fn<F, T>(f: F) -> Self
    where
        F: Fn(&Parts, &Bytes) -> T + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        Self::reading(Reading::Function(Arc::new(move |parts, body, sink| sink(f(parts, body).as_ref()))))
    }

    /// Makes a header count: all of its values, in order; an absent header differs from an empty
    /// one.
    ///
    /// Not for headers that differ between attempts, like `Date`, `Authorization` with a
    /// short-lived token, or a trace id. Naming a header twice, or in another order, changes
    /// nothing.
    pub fn including_header(mut self, name: HeaderName) -> Self {
        if let Err(place) = self.headers.binary_search_by(|held| held.as_str().cmp(name.as_str())) {
            self.headers.insert(place, name);
        }
        self
    }

    /// Leaves a member (or an array's element) out of JSON bodies, named by an RFC 6901 JSON
    /// pointer.
    ///
    /// For what a client stamps anew on every attempt: `.ignoring("/sent_at")`,
    /// `.ignoring("/items/0/nonce")`. A body with the member then equals one without it. It has no
    /// effect on other bodies, nor together with [`raw`](Self::raw), [`from_fn`](Self::from_fn) or
    /// [`without_body`](Self::without_body).
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_idempotency::Fingerprint;
    ///
    /// let fingerprint = Fingerprint::normalized().ignoring("/sent_at").ignoring("/items/0/nonce");
    /// ```
    ///
    /// # Panics
    ///
    /// When `pointer` is not a JSON pointer, or is the empty one, which names the whole body.
    pub fn ignoring(mut self, pointer: &str) -> Self {
        match Pointer::parse(pointer) {
            Some(pointer) => self.ignored.push(pointer),
            None => panic!("not a JSON pointer to a part of a body: {pointer:?}"),
        }
        self
    }

    /// Whether [`digest`](Self::digest) looks at the body; if not, it may be given an empty one.
    pub(crate) fn reads_body(&self) -> bool {
        !matches!(self.reading, Reading::Nothing)
    }

    /// The fingerprint of one request. Of `uri`, the original one, only path and query count.
    pub(crate) fn digest(&self, parts: &Parts, uri: &Uri, body: &Bytes) -> Digest {
        let mut transcript = Transcript::new(Domain::Request);
        transcript.field(parts.method.as_str().as_bytes());
        // No authority: an HTTP/2 request target has one, the same request over HTTP/1.1 has not.
        transcript.field(uri.path().as_bytes());
        transcript.option(uri.query().map(str::as_bytes));
        transcript.list(values(&parts.headers, &CONTENT_ENCODING));
        transcript.count(self.headers.len());
        for name in &self.headers {
            transcript.field(name.as_str().as_bytes());
            transcript.list(values(&parts.headers, name));
        }
        self.content(parts, body, &mut transcript);
        transcript.finish()
    }

    /// The last two parts, content type and body: how the one is written depends on how the other
    /// is read.
    fn content(&self, parts: &Parts, body: &Bytes, transcript: &mut Transcript) {
        let content_type = ContentType::of(&parts.headers);
        match &self.reading {
            Reading::Function(read) => {
                content_type.write(true, transcript);
                transcript.tag(BodyForm::Function);
                read(parts, body, &mut |bytes| transcript.bytes(bytes));
            }
            Reading::Normalized if !is_encoded(&parts.headers) => {
                self.normal_form(&content_type, body, transcript)
            }
            Reading::Nothing => {
                content_type.write(true, transcript);
                transcript.tag(BodyForm::Nothing);
            }
            Reading::Normalized | Reading::Raw => raw(&content_type, body, transcript),
        }
    }

    fn normal_form(&self, content_type: &ContentType<'_>, body: &[u8], transcript: &mut Transcript) {
        if content_type.is_json()
            && let Ok(outline) = json::Outline::of(body, &self.ignored)
        {
            content_type.write(false, transcript);
            transcript.tag(BodyForm::Json);
            outline.write(&mut |bytes| transcript.bytes(bytes));
        } else if content_type.is_form()
            && let Some(form) = form::Form::of(body)
        {
            content_type.write(false, transcript);
            transcript.tag(BodyForm::Form);
            form.write(&mut |bytes| transcript.bytes(bytes));
        } else if let Some(boundary) = content_type.form_data_boundary()
            && let Some(segments) = multipart::Segments::of(body, boundary)
        {
            content_type.write(true, transcript);
            transcript.tag(BodyForm::Multipart);
            segments.for_each(|segment| transcript.field(segment));
        } else {
            raw(content_type, body, transcript);
        }
    }

    fn reading(reading: Reading) -> Self {
        Self { reading, headers: Vec::new(), ignored: Vec::new() }
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::normalized()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprint")
            .field("body", &self.reading)
            .field("headers", &self.headers)
            .field("ignored", &self.ignored)
            .finish()
    }
}

/// How a rule reads the body.
#[derive(Clone)]
enum Reading {
    Function(Arc<Function>),
    Normalized,
    Nothing,
    Raw,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Function(_) => "Function",
            Self::Normalized => "Normalized",
            Self::Nothing => "Nothing",
            Self::Raw => "Raw",
        })
    }
}

/// A user's function; it hands its bytes on instead of returning them, so that their type is not in
/// ours.
type Function = dyn Fn(&Parts, &Bytes, &mut dyn FnMut(&[u8])) + Send + Sync;

fn raw(content_type: &ContentType<'_>, body: &[u8], transcript: &mut Transcript) {
    content_type.write(false, transcript);
    transcript.tag(BodyForm::Raw);
    transcript.bytes(body);
}

/// A coded body is compressed text: nothing in it is JSON or a form until it is decoded.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}

#[cfg(test)]
mod tests;
