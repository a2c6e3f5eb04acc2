//! The parser that ours is held against.

use std::collections::BTreeMap;

use super::document::Value;

/// A strict parser in the plainest form: recursive, over characters, with no thought of speed.
pub(super) fn parse(body: &[u8]) -> Option<Value> {
    let chars: Vec<char> = std::str::from_utf8(body).ok()?.chars().collect();
    let mut reader = Reader { chars, at: 0 };
    let value = reader.value(0)?;
    (reader.at == reader.chars.len()).then_some(value)
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, char: char) -> Option<()> {
        (self.peek() == Some(char)).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|char| " \t\n\r".contains(char)) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.space();
        let value = match self.peek()? {
            '{' | '[' if depth == 128 => return None,
            '{' => {
                let mut members = BTreeMap::new();
                self.list('{', '}', |reader| {
                    reader.space();
                    let name = reader.string()?;
                    reader.space();
                    reader.eat(':')?;
                    let value = reader.value(depth + 1)?;
                    members.insert(name, value).is_none().then_some(())
                })?;
                Value::Object(members)
            }
            '[' => {
                let mut elements = Vec::new();
                self.list('[', ']', |reader| {
                    elements.push(reader.value(depth + 1)?);
                    Some(())
                })?;
                Value::Array(elements)
            }
            '"' => Value::String(self.string()?),
            _ => {
                let start = self.at;
                while self.peek().is_some_and(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) {
                    self.at += 1;
                }
                let lexeme: String = self.chars[start..self.at].iter().collect();
                if !["true", "false", "null"].contains(&lexeme.as_str()) && !is_number(&lexeme) {
                    return None;
                }
                Value::Scalar(lexeme)
            }
        };
        self.space();
        Some(value)
    }

    fn list(&mut self, open: char, close: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.eat(open)?;
        self.space();
        if self.eat(close).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.eat(close).is_some() {
                return Some(());
            }
            self.eat(',')?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.eat('"')?;
        let mut units = Vec::new();
        loop {
            let char = self.peek()?;
            self.at += 1;
            match char {
                '"' => return String::from_utf16(&units).ok(),
                '\\' => {
                    let escape = self.peek()?;
                    self.at += 1;
                    units.push(match escape {
                        '"' | '\\' | '/' => escape as u16,
                        'b' => 8,
                        'f' => 12,
                        'n' => 10,
                        'r' => 13,
                        't' => 9,
                        'u' => {
                            let digits: String = self.chars.get(self.at..self.at + 4)?.iter().collect();
                            self.at += 4;
                            let digits =
                                digits.chars().all(|digit| digit.is_ascii_hexdigit()).then_some(digits)?;
                            u16::from_str_radix(&digits, 16).ok()?
                        }
                        _ => return None,
                    });
                }
                '\0'..='\u{1f}' => return None,
                char => units.extend_from_slice(char.encode_utf16(&mut [0; 2])),
            }
        }
    }
}

fn is_number(lexeme: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|char| char.is_ascii_digit());
    let unsigned = lexeme.strip_prefix('-').unwrap_or(lexeme);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}
