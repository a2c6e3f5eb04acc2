//! The order of an object's members.

use super::{Child, NotJson};

/// A child with what it is sorted by.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// Eight bytes of the name as a number; where two differ, names are in the order of these.
    pub(super) prefix: u64,
    /// The length of the name, without quotes.
    pub(super) name: u32,
    pub(super) child: Child,
}

impl Member {
    pub(super) fn is_left_out(&self) -> bool {
        self.child.inner == LEFT_OUT
    }

    /// Its name, without quotes.
    fn name<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.child.start as usize + 1..][..self.name as usize]
    }
}

/// Puts an object's members in the order of their names, as these are spelled in `text`.
///
/// Eight bytes of the names are compared at a time, as numbers; only members that agree in those
/// are looked at again, by the next eight. So names with a long common start, as keys of a map have
/// them, cost a pass over that start and not a comparison of it for each step of the sort.
pub(super) fn sort(members: &mut [Member], text: &[u8]) -> Result<(), NotJson> {
    sort_from(members, text, PREFIX)
}

fn sort_from(members: &mut [Member], text: &[u8], next: usize) -> Result<(), NotJson> {
    members.sort_unstable_by_key(|member| member.prefix);
    for equal in members.chunk_by_mut(|a, b| a.prefix == b.prefix).filter(|equal| equal.len() > 1) {
        // A zero is past the end of a name, in which there is none: these names are the same.
        if equal[0].prefix & 0xff == 0 {
            return Err(NotJson);
        }
        if next < LONG {
            for member in &mut *equal {
                let name = member.name(text);
                member.prefix = prefix(name, next, name.len());
            }
            sort_from(equal, text, next + PREFIX)?;
        } else {
            equal.sort_unstable_by(|a, b| a.name(text)[next..].cmp(&b.name(text)[next..]));
            if equal.windows(2).any(|pair| pair[0].name(text) == pair[1].name(text)) {
                return Err(NotJson);
            }
        }
    }
    Ok(())
}

/// Eight bytes of a name that is at `from..to`, as a big-endian number, with zeros after its end.
#[inline]
pub(super) fn prefix(text: &[u8], from: usize, to: usize) -> u64 {
    let length = (to - from).min(PREFIX) as u32;
    let Some(bytes) = text.get(from..).and_then(|text| text.first_chunk::<PREFIX>()) else {
        let bytes = text[from..to].iter().zip((0..u64::BITS).step_by(8).rev());
        return bytes.fold(0, |prefix, (&byte, place)| prefix | u64::from(byte) << place);
    };
    let past_end = u64::MAX.checked_shr(8 * length).unwrap_or(0);
    u64::from_be_bytes(*bytes) & !past_end
}

const PREFIX: usize = 8;

/// From here on names are compared whole: there cannot be many this long, and the calls must not
/// nest without bound.
const LONG: usize = 64;

/// In place of the first container inside a child: a pointer says to leave it out.
pub(super) const LEFT_OUT: u32 = u32::MAX;
