//! The text of a document without white space, each string in its one spelling.

use std::borrow::Cow;

use super::lexeme;

/// The text so far. It is copied only from the first place on where it differs from the source.
pub(super) struct Text<'a> {
    source: &'a [u8],
    /// The text before the current run.
    kept: Vec<u8>,
    /// Where the current run starts, the stretch of the source that stays as it is.
    run: usize,
    /// By how much the text before the current run is shorter than the source.
    lost: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(source: &'a [u8]) -> Self {
        Self { source, kept: Vec::new(), run: 0, lost: 0 }
    }

    /// The place in the text of a place in the current run, or at its end.
    #[inline]
    pub(super) fn place(&self, at: usize) -> usize {
        at - self.lost
    }

    /// Leaves out what is between `from` and `to`.
    pub(super) fn skip(&mut self, from: usize, to: usize) {
        if self.kept.capacity() == 0 {
            self.kept.reserve(self.source.len());
        }
        self.kept.extend_from_slice(&self.source[self.run..from]);
        self.run = to;
        self.lost = to - self.kept.len();
    }

    /// Puts a character in the place of what is between `from` and `to`.
    pub(super) fn respell(&mut self, from: usize, to: usize, char: char) {
        self.skip(from, to);
        lexeme::spell(char, &mut self.kept);
        self.lost = to - self.kept.len();
    }

    /// A string that has just been passed, from its quote at `from` on, and that has `start` as its
    /// place in the text: where it is to be read, and where it starts and ends there, without its
    /// quotes.
    #[inline]
    pub(super) fn string(&mut self, from: usize, to: usize, start: usize) -> (&[u8], usize, usize) {
        if self.run <= from {
            (self.source, from + 1, to - 1)
        } else {
            self.skip(to, to);
            (&self.kept, start + 1, self.kept.len() - 1)
        }
    }

    /// The text up to a place in the current run, or to its end.
    pub(super) fn until(&mut self, at: usize) -> &[u8] {
        if self.kept.is_empty() {
            &self.source[self.run..at]
        } else {
            self.skip(at, at);
            &self.kept
        }
    }

    /// The whole text, which ends at a place in the current run, or at its end.
    pub(super) fn finish(mut self, at: usize) -> Cow<'a, [u8]> {
        if self.kept.is_empty() {
            Cow::Borrowed(&self.source[self.run..at])
        } else {
            self.skip(at, at);
            Cow::Owned(self.kept)
        }
    }
}
