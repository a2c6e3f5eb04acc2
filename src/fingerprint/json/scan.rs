//! The first pass over a document: grammar, white space, spelling, and where the members are.

use std::borrow::Cow;

use super::{Child, Container, NotJson, Outline, lexeme};
use crate::fingerprint::pointer::Pointer;

/// Goes over a document once. Members of objects that are not in order are noted but not yet sorted.
pub(super) fn scan<'a>(body: &'a [u8], ignored: &[Pointer]) -> Result<Outline<'a>, NotJson> {
    // Places in the text are 32 bits wide; the text is never longer than the body.
    if u32::try_from(body.len()).is_err() || std::str::from_utf8(body).is_err() {
        return Err(NotJson);
    }
    Scanner {
        source: body,
        ignored,
        at: 0,
        kept: Vec::new(),
        run: 0,
        open: Vec::new(),
        routes: (0..ignored.len()).collect(),
        pending: Vec::new(),
        containers: Vec::new(),
        children: Vec::new(),
    }
    .document()
}

struct Scanner<'a, 'p> {
    source: &'a [u8],
    ignored: &'p [Pointer],
    at: usize,
    /// The text so far, less the current run.
    kept: Vec<u8>,
    /// Where the current run starts, the part of the source that will be kept as it is.
    run: usize,
    /// The containers around the current place, outermost first.
    open: Vec<Open>,
    /// The pointers that lead into the open containers, those of one container side by side.
    routes: Vec<usize>,
    /// The children of the open containers so far.
    pending: Vec<Child>,
    containers: Vec<Container>,
    children: Vec<Child>,
}

/// An open container.
struct Open {
    is_object: bool,
    /// Its place in `containers`.
    place: u32,
    /// Its first child in `pending`.
    first: usize,
    /// The routes through it.
    routes: (usize, usize),
    /// How many elements the array has so far; counted only if there are routes through it.
    elements: usize,
}

impl<'a> Scanner<'a, '_> {
    fn document(mut self) -> Result<Outline<'a>, NotJson> {
        self.space();
        loop {
            self.value()?;
            while !self.separator()? {
                if self.open.is_empty() {
                    return self.finish();
                }
            }
        }
    }

    /// One scalar, or the start of a container up to its first value; an empty container is a scalar.
    #[inline]
    fn value(&mut self) -> Result<(), NotJson> {
        loop {
            match self.peek() {
                Some(b'"') => return self.string(),
                Some(b'-' | b'0'..=b'9') => {
                    self.at = lexeme::number(self.source, self.at)?;
                    return Ok(());
                }
                Some(b'{') => {
                    self.open(true)?;
                    if self.peek() == Some(b'}') {
                        self.close();
                        return Ok(());
                    }
                    self.name()?;
                }
                Some(b'[') => {
                    self.open(false)?;
                    if self.peek() == Some(b']') {
                        self.close();
                        return Ok(());
                    }
                    self.element();
                }
                Some(b't') => return self.literal(b"true"),
                Some(b'f') => return self.literal(b"false"),
                Some(b'n') => return self.literal(b"null"),
                _ => return Err(NotJson),
            }
        }
    }

    /// What follows a value: `true` if another one, `false` if the container, or the document, ends here.
    #[inline]
    fn separator(&mut self) -> Result<bool, NotJson> {
        let Some(&Open { is_object, .. }) = self.open.last() else {
            return Ok(false);
        };
        self.space();
        match (self.peek(), is_object) {
            (Some(b','), true) => {
                self.end_of_child();
                self.at += 1;
                self.space();
                self.name()?;
                Ok(true)
            }
            (Some(b','), false) => {
                self.end_of_child();
                self.at += 1;
                self.space();
                self.element();
                Ok(true)
            }
            (Some(b'}'), true) | (Some(b']'), false) => {
                self.end_of_child();
                self.close();
                Ok(false)
            }
            _ => Err(NotJson),
        }
    }

    fn finish(mut self) -> Result<Outline<'a>, NotJson> {
        let end = self.at;
        self.skip_space();
        if self.at != self.source.len() {
            return Err(NotJson);
        }
        let rest = &self.source[self.run..end];
        let text = if self.kept.is_empty() {
            Cow::Borrowed(rest)
        } else {
            self.kept.extend_from_slice(rest);
            Cow::Owned(self.kept)
        };
        Ok(Outline { text, containers: self.containers, children: self.children })
    }

    fn open(&mut self, is_object: bool) -> Result<(), NotJson> {
        if self.open.len() == DEPTH {
            return Err(NotJson);
        }
        let place = index(self.containers.len());
        let start = self.here();
        self.containers.push(Container { start, end: start, first: 0, last: 0, next: place + 1, is_object });
        let from = self.open.last().map_or(0, |parent| parent.routes.1);
        let routes = (from, self.routes.len());
        self.open.push(Open { is_object, place, first: self.pending.len(), routes, elements: 0 });
        self.at += 1;
        self.space();
        Ok(())
    }

    /// Closes the innermost container; keeps note of it only if it cannot be copied as it is.
    fn close(&mut self) {
        self.at += 1;
        let Some(open) = self.open.pop() else { return };
        self.routes.truncate(open.routes.0);
        let children = &self.pending[open.first..];
        let in_order = !open.is_object || children.is_sorted_by(|a, b| a.prefix < b.prefix);
        if in_order
            && (open.routes.0 == open.routes.1 || children.iter().all(|child| child.start != child.end))
        {
            self.pending.truncate(open.first);
            if self.containers.len() == open.place as usize + 1 {
                self.containers.pop();
            }
            return;
        }
        let first = index(self.children.len());
        self.children.extend(self.pending.drain(open.first..));
        let (last, next, end) = (index(self.children.len()), index(self.containers.len()), self.here());
        let container = &mut self.containers[open.place as usize];
        *container = Container { end, first, last, next, ..*container };
    }

    /// A member's name and colon.
    fn name(&mut self) -> Result<(), NotJson> {
        if self.peek() != Some(b'"') {
            return Err(NotJson);
        }
        let (start, from) = (self.here(), self.at + 1);
        self.string()?;
        let to = self.at - 1;
        let name = if self.run < from {
            &self.source[from..to]
        } else {
            self.keep(self.at);
            &self.kept[start as usize + 1..self.kept.len() - 1]
        };
        let mut child = Child { prefix: prefix(name), start, end: OPEN, name: index(name.len()), inner: 0 };
        child.inner = index(self.containers.len());
        if let Some(&Open { routes: (first, last), .. }) = self.open.last()
            && first != last
        {
            let name = name.to_vec();
            if self.route(|pointer, depth| pointer.step(depth).is_some_and(|(step, _)| step.is_member(&name)))
            {
                child.end = start;
            }
        }
        self.pending.push(child);
        self.space();
        if self.peek() != Some(b':') {
            return Err(NotJson);
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    /// The start of an array's element.
    fn element(&mut self) {
        let start = self.here();
        let Some(open) = self.open.last_mut().filter(|open| open.routes.0 != open.routes.1) else { return };
        let place = open.elements;
        open.elements += 1;
        let left_out =
            self.route(|pointer, depth| pointer.step(depth).is_some_and(|(step, _)| step.is_element(place)));
        let end = if left_out { start } else { OPEN };
        self.pending.push(Child { prefix: 0, start, end, name: 0, inner: index(self.containers.len()) });
    }

    /// Follows the pointers through the innermost container to one of its children: whether it is left out.
    fn route(&mut self, leads: impl Fn(&Pointer, usize) -> bool) -> bool {
        let Some(open) = self.open.last() else { return false };
        let depth = self.open.len() - 1;
        let (first, last) = open.routes;
        self.routes.truncate(last);
        let mut left_out = false;
        for route in first..last {
            let pointer = &self.ignored[self.routes[route]];
            if leads(pointer, depth) {
                match pointer.step(depth) {
                    Some((_, true)) => left_out = true,
                    _ => self.routes.push(self.routes[route]),
                }
            }
        }
        left_out
    }

    #[inline]
    fn end_of_child(&mut self) {
        let here = self.here();
        if let Some(open) = self.open.last()
            && let Some(child) = self.pending[open.first..].last_mut()
            && child.end == OPEN
        {
            child.end = here;
        }
    }

    #[inline]
    fn string(&mut self) -> Result<(), NotJson> {
        self.at += 1;
        loop {
            self.at = lexeme::plain(self.source, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(NotJson),
            }
        }
    }

    fn escape(&mut self) -> Result<(), NotJson> {
        match self.source.get(self.at + 1) {
            Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'/') => {
                self.keep(self.at);
                self.at += 2;
                self.run = self.at - 1;
            }
            Some(b'u') => {
                let (char, end) = lexeme::unicode_escape(self.source, self.at)?;
                self.keep(self.at);
                lexeme::spell(char, &mut self.kept);
                self.at = end;
                self.run = end;
            }
            _ => return Err(NotJson),
        }
        Ok(())
    }

    #[inline]
    fn literal(&mut self, literal: &[u8]) -> Result<(), NotJson> {
        if !self.source[self.at..].starts_with(literal) {
            return Err(NotJson);
        }
        self.at += literal.len();
        Ok(())
    }

    /// Leaves white space out of the text.
    #[inline]
    fn space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.keep(self.at);
            self.skip_space();
            self.run = self.at;
        }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Copies the current run up to `end` into the text.
    #[inline]
    fn keep(&mut self, end: usize) {
        self.kept.extend_from_slice(&self.source[self.run..end]);
        self.run = end;
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    /// The current place in the text.
    #[inline]
    fn here(&self) -> u32 {
        index(self.kept.len() + self.at - self.run)
    }
}

/// The first eight bytes as a big-endian number, as if zeros followed the name.
#[inline]
fn prefix(name: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let length = name.len().min(8);
    prefix[..length].copy_from_slice(&name[..length]);
    u64::from_be_bytes(prefix)
}

/// Counts and places in a document fit 32 bits, as its length does.
#[inline]
fn index(index: usize) -> u32 {
    index as u32
}

/// The end of a child that has none yet.
const OPEN: u32 = u32::MAX;

/// The deepest nesting that has a normal form; serde_json stops at about the same.
pub(super) const DEPTH: usize = 128;
