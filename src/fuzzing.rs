//! What the fuzz targets reach, each with what must hold for any input. Not an API.

use crate::fingerprint::fuzzing;
use crate::{key, record};

/// A header line: a key, or none.
pub fn key(line: &[u8]) {
    key::fuzz(line);
}

/// A body: JSON with a normal form that is its own, or not JSON.
pub fn json(body: &[u8]) {
    if let Some(normal) = fuzzing::json(body) {
        assert!(normal.len() <= body.len(), "longer than the body");
        assert_eq!(fuzzing::json(&normal).as_deref(), Some(&normal[..]), "not its own normal form");
    }
}

/// A body whose boundary is its first line: the segments between its delimiters, or none.
pub fn multipart(input: &[u8]) {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return };
    let (Ok(boundary), body) = (std::str::from_utf8(&input[..end]), &input[end + 1..]) else { return };
    if let Some(segments) = fuzzing::multipart(body, boundary) {
        assert_eq!(segments.join(format!("--{boundary}").as_bytes()), body, "something is lost");
    }
}

/// A record's headers: those that encode to the same, or none.
pub fn record(bytes: &[u8]) {
    record::fuzz(bytes);
}
