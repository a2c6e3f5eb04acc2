//! JSON in a normal form, without a change of meaning.
//!
//! The normal form of a document is itself a JSON document: the same text without insignificant white space, with the
//! members of each object in the order of their names, every string in its shortest spelling, and every number as it
//! was written. It is one spelling of the document, and a JSON parser gets the document back from it; so two documents
//! have the same normal form if and only if they differ in white space, member order and the spelling of strings alone.
//!
//! It is made in three steps, each linear but for the sorting: [`scan`] goes over the bytes once, copies the text
//! without white space and with strings respelled (not at all where nothing needs to change), and notes the members of
//! objects that are not yet in order; then these are sorted; then the text is written out, jumping from member to
//! member where there is an order to follow.

use std::borrow::Cow;

use super::pointer::Pointer;

mod lexeme;
mod order;
mod route;
mod scan;

pub(super) use lexeme::spelling;

/// A document that was found to be strict JSON without repeated names, ready to be written in its normal form.
#[derive(Debug)]
pub(super) struct Outline<'a> {
    /// The document without white space and with strings respelled, members still in their original order.
    text: Cow<'a, [u8]>,
    /// The containers that cannot be copied as they are, outer before inner, left before right.
    containers: Vec<Container>,
    /// Their children, those of one container side by side.
    children: Vec<Child>,
}

/// An object whose members are to be put in order, or a container with something to leave out.
#[derive(Clone, Copy, Debug)]
struct Container {
    /// Where it starts and ends in the text, brackets included.
    start: u32,
    end: u32,
    /// Its children. None: it can be copied as it is, but for containers inside.
    first: u32,
    last: u32,
    /// The next container that is not inside this one.
    next: u32,
    is_object: bool,
}

/// A member of an object, from its name to its value, or an element of an array.
#[derive(Clone, Copy, Debug)]
struct Child {
    /// The first bytes of the name as a number; where two differ, names are in the order of these.
    prefix: u64,
    start: u32,
    end: u32,
    /// The length of the name, without quotes.
    name: u32,
    /// The first container inside it, if there is one; or [`LEFT_OUT`].
    inner: u32,
}

impl Child {
    /// Its name, without quotes.
    fn name<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start as usize + 1..][..self.name as usize]
    }
}

/// The body is not JSON to be compared as such: it breaks the grammar, is not UTF-8, nests too deeply, or has a name
/// twice in one object, which parsers read in different ways.
#[derive(Debug)]
pub(super) struct NotJson;

impl<'a> Outline<'a> {
    /// Parses a document; the parts that `ignored` points to are checked but left out.
    pub(super) fn of(body: &'a [u8], ignored: &[Pointer]) -> Result<Self, NotJson> {
        let mut outline = scan::scan(body, ignored)?;
        outline.sort()?;
        Ok(outline)
    }

    /// Writes the normal form.
    pub(super) fn write(&self, sink: &mut impl FnMut(&[u8])) {
        self.write_range(0, self.text.len(), 0, sink);
    }

    /// Puts members in order.
    fn sort(&mut self) -> Result<(), NotJson> {
        for container in self.containers.iter_mut().filter(|container| container.is_object) {
            let members = &mut self.children[container.first as usize..container.last as usize];
            order::sort(members, &self.text)?;
            let is_whole = members.iter().all(|member| member.inner != LEFT_OUT);
            if is_whole && members.is_sorted_by_key(|member| member.start) {
                container.last = container.first;
            }
        }
        Ok(())
    }

    /// Writes a part of the text that begins outside of all containers from `inner` on. Calls itself once per level of
    /// nesting, of which there are at most [`scan::DEPTH`].
    fn write_range(&self, mut start: usize, end: usize, inner: u32, sink: &mut impl FnMut(&[u8])) {
        let mut next = inner as usize;
        while let Some(container) = self.containers.get(next).filter(|inner| (inner.start as usize) < end) {
            let children = &self.children[container.first as usize..container.last as usize];
            if children.is_empty() {
                next += 1;
                continue;
            }
            sink(&self.text[start..=container.start as usize]);
            // A child is written with the comma after it; where it had none, or needs none, that is put right.
            let mut kept = children.iter().filter(|child| child.inner != LEFT_OUT).peekable();
            while let Some(child) = kept.next() {
                let is_last = kept.peek().is_none();
                let has_comma = self.text[child.end as usize] == b',';
                let end = child.end as usize + usize::from(has_comma && !is_last);
                self.write_range(child.start as usize, end, child.inner, sink);
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

/// In place of the first container inside a child: a pointer says to leave it out.
const LEFT_OUT: u32 = u32::MAX;

#[cfg(test)]
mod tests;
