//! Which pointers lead where.

use crate::fingerprint::pointer::{Pointer, Step};

/// The pointers that lead into the open containers: a stack, with a stretch for each container.
pub(super) struct Routes<'p> {
    pointers: &'p [Pointer],
    stack: Vec<u32>,
}

/// The stretch of a container; empty for nearly all.
#[derive(Clone, Copy, Default)]
pub(super) struct Stretch {
    first: u32,
    last: u32,
}

impl<'p> Routes<'p> {
    pub(super) fn new(pointers: &'p [Pointer]) -> Self {
        Self { pointers, stack: (0..pointers.len() as u32).collect() }
    }

    /// The stretch of a container that opens: what the last step from `parent` has left on the
    /// stack.
    #[inline]
    pub(super) fn open(&self, parent: Stretch) -> Stretch {
        Stretch { first: parent.last, last: self.stack.len() as u32 }
    }

    /// Takes the step from a container at `depth` to one of its children: whether a pointer ends
    /// there.
    ///
    /// It begins by taking off the stack what the child before has left there. Nothing else needs
    /// to: a container that no pointer leads into leaves nothing.
    #[cold]
    pub(super) fn step(&mut self, container: Stretch, depth: usize, leads: impl Fn(&Step) -> bool) -> bool {
        self.stack.truncate(container.last as usize);
        let mut ends = false;
        for place in container.first..container.last {
            let route = self.stack[place as usize];
            match self.pointers[route as usize].step(depth) {
                Some((step, true)) => ends |= leads(step),
                Some((step, false)) if leads(step) => self.stack.push(route),
                _ => (),
            }
        }
        ends
    }
}

impl Stretch {
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.first == self.last
    }
}
