//! Documents: drawn, spelled, edited.

use std::collections::BTreeMap;

use super::spelling;

/// Choices read off a list of bytes; all zero when it is used up.
pub(super) struct Dice<'a>(pub(super) &'a [u8]);

impl Dice<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first) % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A document as the reference parser sees it; `Object` keeps its members by decoded name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
    Scalar(String),
    String(String),
}

impl Value {
    pub(super) fn draw(dice: &mut Dice<'_>, depth: usize) -> Self {
        match dice.below(if depth > 6 { 4 } else { 9 }).max(if depth == 0 { dice.below(9) } else { 0 }) {
            0 | 1 => Self::Scalar(dice.pick(&SCALARS).to_owned()),
            2 => Self::String(dice.pick(&NAMES).to_owned()),
            3 => Self::String((0..dice.below(24)).map(|_| dice.pick(&CHARS)).collect()),
            4 | 5 => Self::Array((0..dice.below(5)).map(|_| Self::draw(dice, depth + 1)).collect()),
            _ => Self::Object(
                (0..dice.below(6))
                    .map(|_| (dice.pick(&NAMES).to_owned(), Self::draw(dice, depth + 1)))
                    .collect(),
            ),
        }
    }

    /// Spells the document in one of many ways.
    pub(super) fn spell(&self, dice: &mut Dice<'_>, out: &mut String) {
        let space = |dice: &mut Dice<'_>| dice.pick(&["", "", " ", "\n  ", "\t\r"]);
        *out += space(dice);
        match self {
            Self::Array(elements) => {
                out.push('[');
                *out += if elements.is_empty() { space(dice) } else { "" };
                for (place, element) in elements.iter().enumerate() {
                    *out += if place > 0 { "," } else { "" };
                    element.spell(dice, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                *out += if members.is_empty() { space(dice) } else { "" };
                let mut members: Vec<_> = members.iter().collect();
                for place in (1..members.len()).rev() {
                    members.swap(place, dice.below(place + 1));
                }
                for (place, (name, value)) in members.into_iter().enumerate() {
                    *out += if place > 0 { "," } else { "" };
                    *out += space(dice);
                    spell_string(name, dice, out);
                    *out += space(dice);
                    out.push(':');
                    value.spell(dice, out);
                }
                out.push('}');
            }
            Self::Scalar(lexeme) => *out += lexeme,
            Self::String(string) => spell_string(string, dice, out),
        }
        *out += space(dice);
    }

    /// The normal form, as straight from its description.
    pub(super) fn render(&self, out: &mut String) {
        let string = |string: &str| format!("\"{}\"", String::from_utf8(spelling(string)).unwrap());
        let join = |parts: &mut dyn Iterator<Item = String>, open, close| {
            format!("{open}{}{close}", parts.collect::<Vec<_>>().join(","))
        };
        let rendered = |value: &Self| {
            let mut out = String::new();
            value.render(&mut out);
            out
        };
        *out += &match self {
            Self::Array(elements) => join(&mut elements.iter().map(rendered), '[', ']'),
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| spelling(name));
                join(
                    &mut members.iter().map(|(name, value)| format!("{}:{}", string(name), rendered(value))),
                    '{',
                    '}',
                )
            }
            Self::Scalar(lexeme) => lexeme.clone(),
            Self::String(text) => string(text),
        }
    }

    pub(super) fn without(&self, pointers: &[&[&str]]) -> Self {
        let child = |name: &str, value: &Self| {
            let below: Vec<_> =
                pointers.iter().filter(|steps| steps[0] == name).map(|steps| &steps[1..]).collect();
            (!below.iter().any(|steps| steps.is_empty())).then(|| value.without(&below))
        };
        match self {
            Self::Array(elements) => Self::Array(
                elements
                    .iter()
                    .enumerate()
                    .filter_map(|(place, value)| child(&place.to_string(), value))
                    .collect(),
            ),
            Self::Object(members) => Self::Object(
                members
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), child(name, value)?)))
                    .collect(),
            ),
            scalar => scalar.clone(),
        }
    }
}

fn spell_string(string: &str, dice: &mut Dice<'_>, out: &mut String) {
    out.push('"');
    for char in string.chars() {
        match (char, dice.below(6)) {
            (_, 4) => {
                char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| *out += &format!("\\u{unit:04x}"))
            }
            (_, 5) => {
                char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| *out += &format!("\\u{unit:04X}"))
            }
            ('"' | '\\', _) | ('/', 3) => out.extend(['\\', char]),
            ('\n', 0..=3) => *out += "\\n",
            ('\t', 0..=3) => *out += "\\t",
            ('\r', 0..=3) => *out += "\\r",
            ('\u{8}', 0..=3) => *out += "\\b",
            ('\u{c}', 0..=3) => *out += "\\f",
            ('\0'..='\u{1f}', _) => *out += &format!("\\u{:04x}", char as u32),
            _ => out.push(char),
        }
    }
    out.push('"');
}

/// A few edits, of the kind that turns one document into another or into none.
pub(super) fn mutate(body: &[u8], dice: &mut Dice<'_>) -> Vec<u8> {
    let mut body = body.to_vec();
    for _ in 0..dice.below(4) {
        let place = (dice.below(256) * 256 + dice.below(256)) % (body.len() + 1);
        let byte = dice.pick(EDITS);
        match dice.below(4) {
            0 => body.insert(place, byte),
            1 if place < body.len() => body[place] = byte,
            2 if place < body.len() => drop(body.remove(place)),
            _ => {
                let end = (place + dice.below(12)).min(body.len());
                let piece = body[place..end].to_vec();
                let to = (dice.below(256) * 256 + dice.below(256)) % (body.len() + 1);
                body.splice(to..to, piece);
            }
        }
    }
    body
}

const SCALARS: [&str; 12] = [
    "0",
    "1",
    "1.0",
    "-0",
    "-12345678901234567890",
    "1e2",
    "100",
    "0.1E-7",
    "123456789",
    "true",
    "false",
    "null",
];

pub(super) const NAMES: [&str; 18] = [
    "",
    "a",
    "b",
    "aa",
    "a/b",
    "m~n",
    "0",
    "1",
    "\"",
    "\\",
    "\0",
    "a\0",
    "é",
    "created_at",
    "created_by",
    "created_\n",
    "a name of twenty-nine bytes..",
    "a name that goes on for longer than sixty-four bytes, in which it is all the same: 1",
];

const CHARS: [char; 17] = [
    'a', 'b', '/', '"', '\\', '\0', '\n', '\t', '\r', '\u{c}', '\u{8}', '\u{1f}', '\u{7f}', 'é', '\u{2028}',
    '\u{ffff}', '😀',
];

/// What is put in, mostly what the grammar turns on.
const EDITS: &[u8] =
    b"{}[]\",:\\/0123456789.eE+-tfnulars bad8DcC \t\n\x0c\0\x1f\x7f\x80\xc3\xa9\xed\xa0\xef\xbb\xbf\xf0\xff";
