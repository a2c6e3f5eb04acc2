//! The first pass over a document: grammar, white space, spelling, and where the members are.

use super::order::{self, LEFT_OUT, Member};
use super::route::{Routes, Stretch};
use super::text::Text;
use super::{Child, Container, NotJson, Outline, lexeme};
use crate::fingerprint::pointer::Pointer;

/// Goes over a document once.
pub(super) fn scan<'a>(body: &'a [u8], ignored: &[Pointer]) -> Result<Outline<'a>, NotJson> {
    // Places in the text are 32 bits wide; the text is never longer than the body.
    if u32::try_from(body.len()).is_err() || std::str::from_utf8(body).is_err() {
        return Err(NotJson);
    }
    Scanner {
        source: body,
        text: Text::new(body),
        open: Vec::with_capacity(FEW),
        routes: Routes::new(ignored),
        pending: Vec::with_capacity(FEW),
        containers: Vec::new(),
        children: Vec::new(),
    }
    .document()
}

struct Scanner<'a, 'p> {
    source: &'a [u8],
    text: Text<'a>,
    /// The containers around the current place, outermost first.
    open: Vec<Open>,
    routes: Routes<'p>,
    /// The children of the open containers so far: members, and elements if pointers lead into
    /// their array.
    pending: Vec<Member>,
    containers: Vec<Container>,
    children: Vec<Child>,
}

/// An open container.
#[derive(Clone, Copy)]
struct Open {
    is_object: bool,
    /// Its place in `containers`.
    place: u32,
    /// Its first child in `pending`.
    first: u32,
    /// The pointers that lead into it.
    routes: Stretch,
    /// How many elements the array has so far; counted only if pointers lead into it.
    elements: u32,
}

/// Every method that goes forward takes the place in the source where it starts and returns the one
/// where it ended.
impl<'a> Scanner<'a, '_> {
    fn document(mut self) -> Result<Outline<'a>, NotJson> {
        let mut at = self.space(0);
        loop {
            at = match self.source.get(at) {
                Some(b'"') => self.string(at)?,
                Some(b'-' | b'0'..=b'9') => lexeme::number(self.source, at)?,
                Some(b'{') => {
                    at = self.open(at, true)?;
                    if self.source.get(at) != Some(&b'}') {
                        at = self.name(at)?;
                        continue;
                    }
                    self.close(at)?
                }
                Some(b'[') => {
                    at = self.open(at, false)?;
                    if self.source.get(at) != Some(&b']') {
                        self.element(at);
                        continue;
                    }
                    self.close(at)?
                }
                Some(b't') => self.literal(at, b"true")?,
                Some(b'f') => self.literal(at, b"false")?,
                Some(b'n') => self.literal(at, b"null")?,
                _ => return Err(NotJson),
            };
            loop {
                let Some(&Open { is_object, .. }) = self.open.last() else {
                    return self.finish(at);
                };
                at = self.space(at);
                match (self.source.get(at), is_object) {
                    (Some(b','), true) => {
                        at = self.space(at + 1);
                        at = self.name(at)?;
                        break;
                    }
                    (Some(b','), false) => {
                        at = self.space(at + 1);
                        self.element(at);
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => at = self.close(at)?,
                    _ => return Err(NotJson),
                }
            }
        }
    }

    fn finish(self, end: usize) -> Result<Outline<'a>, NotJson> {
        if skip_space(self.source, end) != self.source.len() {
            return Err(NotJson);
        }
        Ok(Outline { text: self.text.finish(end), containers: self.containers, children: self.children })
    }

    fn open(&mut self, at: usize, is_object: bool) -> Result<usize, NotJson> {
        if self.open.len() == DEPTH {
            return Err(NotJson);
        }
        let place = index(self.containers.len());
        let start = self.place(at);
        self.containers.push(Container { start, end: start, first: 0, last: 0, next: place + 1 });
        let routes = self.routes.open(self.open.last().map_or_else(Stretch::default, |parent| parent.routes));
        self.open.push(Open { is_object, place, first: index(self.pending.len()), routes, elements: 0 });
        Ok(self.space(at + 1))
    }

    /// Closes the innermost container; takes note of it only if it cannot be copied as it is.
    #[inline]
    fn close(&mut self, at: usize) -> Result<usize, NotJson> {
        let Some(open) = self.open.pop() else { return Err(NotJson) };
        let children = &self.pending[open.first as usize..];
        let in_order = !open.is_object || children.is_sorted_by(|a, b| a.prefix < b.prefix);
        if !in_order || (!open.routes.is_empty() && children.iter().any(Member::is_left_out)) {
            self.arrange(at, &open)?;
        }
        self.pending.truncate(open.first as usize);
        // The last one is this one, or one inside it that is not plain.
        self.containers.pop_if(|container| container.is_plain());
        Ok(at + 1)
    }

    /// Puts the children of a container that closes at `at` in order, less those that are left out.
    fn arrange(&mut self, at: usize, open: &Open) -> Result<(), NotJson> {
        let bracket = self.place(at);
        let text = self.text.until(at);
        let children = &mut self.pending[open.first as usize..];
        // A child ends before the comma before the next one, the last one before the bracket.
        let mut end = bracket;
        for Member { child, .. } in children.iter_mut().rev() {
            child.end = end;
            end = child.start - 1;
        }
        if open.is_object {
            order::sort(children, text)?;
        }
        if children.is_sorted_by_key(|child| child.child.start) && !children.iter().any(Member::is_left_out) {
            return Ok(());
        }
        if self.children.capacity() == 0 {
            self.children.reserve(self.source.len() / MEMBER);
        }
        let first = index(self.children.len());
        self.children.extend(children.iter().filter(|child| !child.is_left_out()).map(|child| child.child));
        let (last, next) = (index(self.children.len()), index(self.containers.len()));
        let container = &mut self.containers[open.place as usize];
        *container = Container { start: container.start, end: bracket + 1, first, last, next };
        Ok(())
    }

    /// A member's name and colon.
    #[inline]
    fn name(&mut self, at: usize) -> Result<usize, NotJson> {
        if self.source.get(at) != Some(&b'"') {
            return Err(NotJson);
        }
        let start = self.place(at);
        let mut end = self.string(at)?;
        let (text, from, to) = self.text.string(at, end, start as usize);
        let prefix = order::prefix(text, from, to);
        let mut inner = index(self.containers.len());
        if let Some(open) = self.open.last().filter(|open| !open.routes.is_empty())
            && self.routes.step(open.routes, self.open.len() - 1, |step| step.is_member(&text[from..to]))
        {
            inner = LEFT_OUT;
        }
        let child = Child { start, end: start, inner };
        self.pending.push(Member { prefix, name: index(to - from), child });
        end = self.space(end);
        if self.source.get(end) != Some(&b':') {
            return Err(NotJson);
        }
        Ok(self.space(end + 1))
    }

    /// The start of an array's element.
    #[inline]
    fn element(&mut self, at: usize) {
        let start = self.place(at);
        let depth = self.open.len() - 1;
        if let Some(open) = self.open.last_mut().filter(|open| !open.routes.is_empty()) {
            let element = open.elements as usize;
            open.elements += 1;
            let left_out = self.routes.step(open.routes, depth, |step| step.is_element(element));
            let inner = if left_out { LEFT_OUT } else { index(self.containers.len()) };
            self.pending.push(Member { prefix: 0, name: 0, child: Child { start, end: start, inner } });
        }
    }

    #[inline(always)]
    fn string(&mut self, at: usize) -> Result<usize, NotJson> {
        let end = lexeme::plain(self.source, at + 1);
        if self.source.get(end) == Some(&b'"') { Ok(end + 1) } else { self.string_with_escapes(end) }
    }

    /// The rest of a string, after what could stand as it is.
    fn string_with_escapes(&mut self, mut at: usize) -> Result<usize, NotJson> {
        loop {
            match (self.source.get(at), self.source.get(at + 1)) {
                (Some(b'"'), _) => return Ok(at + 1),
                (Some(b'\\'), Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't')) => at += 2,
                (Some(b'\\'), Some(b'/')) => {
                    self.text.skip(at, at + 1);
                    at += 2;
                }
                (Some(b'\\'), Some(b'u')) => {
                    let (char, end) = lexeme::unicode_escape(self.source, at)?;
                    self.text.respell(at, end, char);
                    at = end;
                }
                _ => return Err(NotJson),
            }
            at = lexeme::plain(self.source, at);
        }
    }

    #[inline]
    fn literal(&self, at: usize, literal: &[u8]) -> Result<usize, NotJson> {
        if self.source[at..].starts_with(literal) { Ok(at + literal.len()) } else { Err(NotJson) }
    }

    /// Leaves white space out of the text.
    #[inline]
    fn space(&mut self, at: usize) -> usize {
        match self.source.get(at) {
            Some(&byte) if byte <= b' ' => {
                let end = skip_space(self.source, at);
                self.text.skip(at, end);
                end
            }
            _ => at,
        }
    }

    /// The place in the text of a place in the current run.
    #[inline]
    fn place(&self, at: usize) -> u32 {
        index(self.text.place(at))
    }
}

#[inline]
fn skip_space(source: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = source.get(at) {
        at += 1;
    }
    at
}

/// Counts and places in a document fit 32 bits, as its length does.
#[inline]
fn index(index: usize) -> u32 {
    index as u32
}

/// The deepest nesting that has a normal form; serde_json stops at about the same.
pub(super) const DEPTH: usize = 128;

/// The bytes of a member, on an average that is rather too low: what memory is set aside for.
const MEMBER: usize = 16;

/// How many levels, or members on them, most documents have no more than.
const FEW: usize = 16;
