//! What the tour looks like: at most 100 columns.

use std::io::{IsTerminal as _, Write as _, stdout};

use serde_json::Value;

use crate::client::{Answer, Call};

/// A line for people. That nobody reads it (`| head`) is no reason to end.
pub(crate) fn line(text: &str) {
    let _ = writeln!(stdout(), "{text}");
}

pub(crate) fn title(number: usize, text: &str) {
    line(&format!("\n{}", styled("1", &format!("{number}. {text}"))));
}

pub(crate) fn remark(text: &str) {
    for text in wrapped(text, WIDTH - 3) {
        line(&format!("   {}", text.trim_end()));
    }
}

pub(crate) fn broken(text: &str) {
    line(&styled("1;31", &format!("   NOT AS PROMISED: {text}")));
}

pub(crate) fn request(call: &Call) {
    line("");
    arrow('>', &format!("{} {}", call.method, call.path));
    if let Some(token) = call.token {
        arrow('>', &format!("Authorization: Bearer {token}"));
    }
    if let Some(key) = call.key {
        arrow('>', &format!("Idempotency-Key: {key}"));
    }
    if !call.body.is_empty() {
        arrow('>', call.body);
    }
}

pub(crate) fn same_request() {
    line("");
    arrow('>', "(the same request once more)");
}

pub(crate) fn answer(answer: &Answer) {
    line("");
    arrow('<', &answer.status.to_string());
    let names = ["Location", "Retry-After", "Idempotent-Replayed", "WWW-Authenticate"];
    let problem = answer.header("content-type") == Some("application/problem+json");
    for name in problem.then_some("Content-Type").into_iter().chain(names) {
        if let Some(value) = answer.header(name) {
            arrow('<', &format!("{name}: {value}"));
        }
    }
    let text = String::from_utf8_lossy(&answer.body);
    match answer.json() {
        Value::Object(members) if text.len() > TEXT_WIDTH => {
            let member = |(name, value): (&String, &Value)| format!("  \"{name}\": {value}");
            block('{', &members.iter().map(member).collect::<Vec<_>>(), '}');
        }
        Value::Array(elements) if text.len() > TEXT_WIDTH => {
            block('[', &elements.iter().map(|element| format!("  {element}")).collect::<Vec<_>>(), ']');
        }
        _ => arrow('<', &text),
    }
}

fn block(open: char, lines: &[String], close: char) {
    arrow('<', &open.to_string());
    for (n, line) in lines.iter().enumerate() {
        let comma = if n + 1 < lines.len() { "," } else { "" };
        arrow('<', &format!("{line}{comma}"));
    }
    arrow('<', &close.to_string());
}

fn arrow(direction: char, text: &str) {
    let color = if direction == '>' { "36" } else { "32" };
    for (n, text) in wrapped(text, TEXT_WIDTH).iter().enumerate() {
        let indent = if n == 0 { "" } else { "    " };
        line(&format!("   {} {indent}{}", styled(color, &direction.to_string()), text.trim_end()));
    }
}

fn styled(style: &str, text: &str) -> String {
    let plain =
        !stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain { text.to_owned() } else { format!("\x1b[{style}m{text}\x1b[0m") }
}

/// Broken between words, where there are any.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + word.trim_end().chars().count() > width {
            lines.push(word.to_owned());
        } else {
            lines[last].push_str(word);
        }
    }
    lines
}

const WIDTH: usize = 100;

/// Without the arrow and the indentation of what is broken.
const TEXT_WIDTH: usize = WIDTH - 9;
