//! JSON pointers (RFC 6901) to what a fingerprint leaves out.

use std::fmt;

use super::json;

/// A pointer to a part of a JSON document, never to the whole.
#[derive(Clone)]
pub(super) struct Pointer {
    text: String,
    steps: Vec<Step>,
}

impl Pointer {
    pub(super) fn parse(pointer: &str) -> Option<Self> {
        let steps = pointer.strip_prefix('/')?.split('/').map(Step::parse).collect::<Option<_>>()?;
        Some(Self { text: pointer.to_owned(), steps })
    }

    /// The step from a container at `depth` to one of its children, and whether that child is the
    /// one meant.
    pub(super) fn step(&self, depth: usize) -> Option<(&Step, bool)> {
        Some((self.steps.get(depth)?, depth + 1 == self.steps.len()))
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// One step down: a member by its name, or an element by its index.
#[derive(Clone)]
pub(super) struct Step {
    /// As the normal form spells it, between the quotes.
    name: Vec<u8>,
    index: Option<usize>,
}

impl Step {
    fn parse(step: &str) -> Option<Self> {
        let mut name = String::with_capacity(step.len());
        let mut rest = step.chars();
        while let Some(char) = rest.next() {
            name.push(match char {
                '~' => match rest.next()? {
                    '0' => '~',
                    '1' => '/',
                    _ => return None,
                },
                char => char,
            });
        }
        let is_index =
            name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
        Some(Self { index: name.parse().ok().filter(|_| is_index), name: json::spelling(&name) })
    }

    pub(super) fn is_member(&self, name: &[u8]) -> bool {
        self.name == name
    }

    pub(super) fn is_element(&self, index: usize) -> bool {
        self.index == Some(index)
    }
}
