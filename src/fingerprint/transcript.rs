//! The bytes that are hashed.

use sha2::Digest as _;
use sha2::Sha256;

use super::Digest;

/// A hash over parts that cannot run into each other.
///
/// A part is written as its length and its bytes; a list as its parts, with a 1 before each and a 0
/// after the last, or as their number and then the parts; an option as a list of none or one; what
/// follows a tag depends on the tag alone; and only the last part of all takes the rest without a
/// length. So the parts can be read back from left to right in one way only, and two different
/// tuples of parts never give the same bytes.
pub(super) struct Transcript {
    hash: Sha256,
    buffer: [u8; BUFFER],
    filled: usize,
}

impl Transcript {
    pub(super) fn new(domain: Domain) -> Self {
        let mut transcript = Self { hash: Sha256::new(), buffer: [0; BUFFER], filled: 0 };
        transcript.field(domain.name());
        transcript
    }

    /// One part with its length.
    pub(super) fn field(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    pub(super) fn field_in_lower_case(&mut self, text: &str) {
        self.count(text.len());
        text.bytes().for_each(|byte| self.bytes(&[byte.to_ascii_lowercase()]));
    }

    /// How many bytes follow, or how many parts.
    pub(super) fn count(&mut self, count: usize) {
        self.bytes(&(count as u64).to_le_bytes());
    }

    pub(super) fn option(&mut self, part: Option<&[u8]>) {
        self.list(part.into_iter());
    }

    pub(super) fn list<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        for part in parts {
            self.bytes(&[1]);
            self.field(part);
        }
        self.bytes(&[0]);
    }

    pub(super) fn tag(&mut self, form: BodyForm) {
        self.bytes(&[form as u8]);
    }

    /// Bytes without a length: for a part of known length, or the last one, which takes the rest.
    #[inline]
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.filled += bytes.len();
            }
            None => self.overflow(bytes),
        }
    }

    pub(super) fn finish(mut self) -> Digest {
        self.hash.update(&self.buffer[..self.filled]);
        let mut digest = [0; 33];
        digest[0] = VERSION;
        digest[1..].copy_from_slice(&self.hash.finalize());
        Digest(digest)
    }

    #[cold]
    fn overflow(&mut self, bytes: &[u8]) {
        self.hash.update(&self.buffer[..self.filled]);
        if bytes.len() < BUFFER {
            self.buffer[..bytes.len()].copy_from_slice(bytes);
            self.filled = bytes.len();
        } else {
            self.hash.update(bytes);
            self.filled = 0;
        }
    }
}

/// What a transcript is of; its first part, which keeps the two apart.
#[derive(Clone, Copy)]
pub(super) enum Domain {
    Input,
    Request,
}

impl Domain {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Input => b"tower-idempotency input",
            Self::Request => b"tower-idempotency request",
        }
    }
}

/// What the bytes after the tag are. The numbers are part of the stored format.
#[derive(Clone, Copy)]
pub(super) enum BodyForm {
    Raw = 0,
    Json = 1,
    Form = 2,
    Multipart = 3,
    Function = 4,
    Nothing = 5,
}

/// The version of everything that decides a digest's bytes: the transcript, the normal forms, the
/// hash.
const VERSION: u8 = 1;

/// Normal forms come in pieces of a few bytes; the hash is at its best with many blocks at once.
const BUFFER: usize = 1024;
