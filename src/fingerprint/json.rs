//! JSON in a normal form, without a change of meaning.
//!
//! The normal form of a document is itself a JSON document: the same text without insignificant
//! white space, with the members of each object in the order of their names, every string in its
//! shortest spelling, and every number as it was written. It is one spelling of the document, and a
//! JSON parser gets the document back from it; so two documents have the same normal form if and
//! only if they differ in white space, member order and the spelling of strings alone.
//!
//! It is made in two steps. [`scan`] goes over the bytes once: it copies the text without white
//! space and with strings respelled (nothing is copied where nothing needs to change), and puts the
//! members of an object in order when the object ends. Then the text is written out, jumping from
//! member to member where there is an order to follow. Each member is sorted among its siblings
//! once and written once, however deep it is; so all of it together takes linear time, but for the
//! sorting.

use std::borrow::Cow;

use super::pointer::Pointer;

mod lexeme;
mod order;
mod route;
mod scan;
mod text;

pub(super) use lexeme::spelling;

/// A document that was found to be strict JSON without repeated names, ready to be written in its
/// normal form.
pub(super) struct Outline<'a> {
    /// The document without white space and with strings respelled, members still where they were.
    text: Cow<'a, [u8]>,
    /// The containers that cannot be copied as they are, outer before inner, left before right; and
    /// some that can.
    containers: Vec<Container>,
    /// Their children as they are to be written, those of one container side by side.
    children: Vec<Child>,
}

/// An object or an array, of which the children are to be written in another order, or not all.
#[derive(Clone, Copy)]
struct Container {
    /// Where it starts and ends in the text, brackets included; the same place twice if it is
    /// plain.
    start: u32,
    end: u32,
    /// Its first child, and the one after its last.
    first: u32,
    last: u32,
    /// The next container that is not inside this one.
    next: u32,
}

impl Container {
    /// Whether it can be copied as it is, but for containers inside.
    fn is_plain(&self) -> bool {
        self.start == self.end
    }
}

/// A member of an object, from its name to its value, or an element of an array.
#[derive(Clone, Copy)]
struct Child {
    start: u32,
    end: u32,
    /// The first container inside it, if there is one.
    inner: u32,
}

/// The body is not JSON to be compared as such: it breaks the grammar, is not UTF-8, nests too
/// deeply, or has a name twice in one object, which parsers read in different ways.
#[derive(Debug)]
pub(super) struct NotJson;

impl<'a> Outline<'a> {
    /// Parses a document; the parts that `ignored` points to are checked but left out.
    pub(super) fn of(body: &'a [u8], ignored: &[Pointer]) -> Result<Self, NotJson> {
        scan::scan(body, ignored)
    }

    /// Writes the normal form.
    pub(super) fn write(&self, sink: &mut impl FnMut(&[u8])) {
        self.write_range(0, self.text.len(), 0, sink);
    }

    /// Writes a part of the text that begins outside of all containers from `inner` on. Calls
    /// itself once per level of nesting, of which there are at most [`scan::DEPTH`].
    fn write_range(&self, mut start: usize, end: usize, inner: u32, sink: &mut impl FnMut(&[u8])) {
        let mut next = inner as usize;
        while let Some(container) = self.containers.get(next).filter(|inner| (inner.start as usize) < end) {
            if container.is_plain() {
                next += 1;
                continue;
            }
            sink(&self.text[start..=container.start as usize]);
            for place in container.first..container.last {
                let child = self.children[place as usize];
                // With the comma after it, if it has one and needs one.
                let (comma, is_last) = (child.end as usize, place + 1 == container.last);
                let has_comma = self.text[comma] == b',';
                let end = comma + usize::from(has_comma && !is_last);
                let start = child.start as usize;
                match self.containers.get(child.inner as usize) {
                    Some(inner) if (inner.start as usize) < end => {
                        self.write_range(start, end, child.inner, sink)
                    }
                    _ => sink(&self.text[start..end]),
                }
                if !has_comma && !is_last {
                    sink(b",");
                }
            }
            start = container.end as usize - 1;
            next = container.next as usize;
        }
        sink(&self.text[start..end]);
    }
}

#[cfg(test)]
mod tests;
