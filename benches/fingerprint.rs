//! What a fingerprint costs: JSON in its normal form, and the hash of it.
//!
//! Against SHA-256 of the bytes as they came, which any comparison of whole requests costs at least;
//! and against what services write themselves: parse into a `serde_json::Value`, serialize that, hash
//! it. (That one sorts members, too, but takes some different numbers for one, and rejects others.)
//!
//! A processor with instructions for SHA-256 hashes faster than a text can be looked at byte by byte;
//! whether this one has them stands at the top. Without them, as with
//! `RUSTFLAGS='--cfg sha2_backend="soft"'`, the hash is most of the work.
//!
//! All on one thread, a tenth of a round's time for each side.
//!
//! | body | |
//! | --- | --- |
//! | flat | one object with many members: numbers, short strings, literals; names not in order |
//! | nested | objects in arrays in objects, six deep; names not in order |
//! | spaced | as nested, with a space after each comma and colon, as Python writes it |
//! | strings | few members with long strings, some of them with escapes |

use std::alloc::System;
use std::hint::black_box;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use harness::{Aim, Plan, Report};
use http::Request;
use http::request::Parts;
use sha2::{Digest as _, Sha256};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower_idempotency::Fingerprint;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let plan = Plan::from_env();
    let mut report = Report::new("fingerprint", "JSON in its normal form and hashed, on one thread", plan);
    report.setting("instructions for SHA-256", has_instructions());

    let mut allocations = Vec::new();
    for (size, bytes) in [("200 B", 200), ("1 KiB", 1 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
        for (shape, make) in SHAPES {
            let name = format!("{shape}, {size}");
            let (parts, body) = request(make, bytes);
            let spelled_otherwise = Bytes::from([b" ", &body[..]].concat());
            let rule = Fingerprint::normalized();
            assert_eq!(rule.of(&parts, &body), rule.of(&parts, &spelled_otherwise), "not in normal form");
            let ours = || fingerprint(&parts, &body);
            let [layer, hash, value] =
                take_turns(plan, body.len(), [&ours, &|| hash(&body), &|| through_value(&body)]);
            let aim = if bytes >= 1 << 10 { Aim::AtLeast(0.5) } else { Aim::None };
            report.ratio(
                format!("{name}: against SHA-256 alone"),
                "MB/s",
                ("normal", &layer),
                ("raw", &hash),
                aim,
            );
            let name_of_value = format!("{name}: against serde_json, then SHA-256");
            report.ratio(name_of_value, "MB/s", ("normal", &layer), ("value", &value), Aim::None);
            if [1 << 10, 1 << 20].contains(&bytes) {
                allocations.push((name, count(ours), count(|| through_value(&body))));
            }
        }
    }
    for (name, (ours, bytes), (values, _)) in allocations {
        report.fact(format!("{name}: allocations"), "", ours, Aim::None);
        report.fact(format!("{name}: allocated, for each byte of the body"), "", bytes, Aim::None);
        report.fact(format!("{name}: allocations through serde_json"), "", values, Aim::None);
    }
    report.finish();
}

fn fingerprint(parts: &Parts, body: &Bytes) -> usize {
    let rule = Fingerprint::normalized();
    black_box(rule.of(black_box(parts), black_box(body)));
    body.len()
}

fn hash(body: &Bytes) -> usize {
    black_box(Sha256::digest(black_box(body)));
    body.len()
}

fn through_value(body: &Bytes) -> usize {
    let value: serde_json::Value = serde_json::from_slice(black_box(body)).expect("JSON");
    let text = serde_json::to_vec(&value).expect("JSON");
    black_box(Sha256::digest(&text));
    body.len()
}

/// Millions of bytes per second of each side, round by round.
fn take_turns<const N: usize>(plan: Plan, length: usize, sides: [&dyn Fn() -> usize; N]) -> [Vec<f64>; N] {
    // So many that looking at the clock costs nothing.
    let portion = (64 << 10) / length + 1;
    let turn = |side: &dyn Fn() -> usize, time: Duration| {
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < time {
            bytes += (0..portion).map(|_| side()).sum::<usize>();
        }
        bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
    };
    let time = plan.time / 10;
    for side in sides {
        turn(side, time / 2);
    }
    let mut rates = [const { Vec::new() }; N];
    for round in 0..plan.rounds {
        for place in 0..N {
            let side = (round + place) % N;
            rates[side].push(turn(sides[side], time));
        }
    }
    rates
}

/// Allocations of one call, growth included, and how many bytes they are for each byte of the body.
fn count(call: impl Fn() -> usize) -> (f64, f64) {
    let region = Region::new(ALLOCATOR);
    let length = call();
    let change = region.change();
    let bytes = change.bytes_allocated as f64;
    ((change.allocations + change.reallocations) as f64, bytes / length as f64)
}

fn request(make: fn(u64) -> String, bytes: usize) -> (Parts, Bytes) {
    let mut parts: Vec<String> = Vec::new();
    let mut length = 2;
    for n in 0.. {
        if length >= bytes && n > 0 {
            break;
        }
        // Small bodies have one part, cut to about the size.
        let part = make(n);
        length += part.len() + 1;
        parts.push(part);
    }
    let body = format!("{{{}}}", parts.join(","));
    let request = Request::post("/payments").header("content-type", "application/json");
    request.body(Bytes::from(body)).expect("a request").into_parts()
}

type Shape = (&'static str, fn(u64) -> String);

const SHAPES: [Shape; 4] = [("flat", flat), ("nested", nested), ("spaced", spaced), ("strings", strings)];

/// One member, or a few: with names that are not in order.
fn flat(n: u64) -> String {
    let name = scattered(n);
    match n % 4 {
        0 => format!(r#""amount_{name:06x}":{}"#, name % 1_000_000),
        1 => format!(r#""currency_{name:06x}":"EUR""#),
        2 => format!(r#""is_paid_{name:06x}":true"#),
        _ => format!(r#""rate_{name:06x}":{}.{}"#, name % 100, name % 10_000),
    }
}

fn nested(n: u64) -> String {
    let name = scattered(n);
    format!(
        r#""order_{name:06x}":{{"lines":[{{"sku":"A-{n}","at":{{"shelf":[{{"row":{},"box":{}}}]}},"count":2}}],"customer":{}}}"#,
        name % 90,
        name % 7,
        name % 100_000
    )
}

fn spaced(n: u64) -> String {
    nested(n).replace(':', ": ").replace(',', ", ")
}

fn strings(n: u64) -> String {
    let name = scattered(n);
    let text = "Twelve crates of copper wire, to be left with the night porter; Zoë has the key. ";
    let escaped = if n % 4 == 3 { r#"\"Thank you\" \u2014 J\u00fcrgen\n"# } else { "" };
    format!(r#""note_{name:06x}":"{text}{escaped}""#)
}

/// Other numbers for other numbers, in no order.
fn scattered(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9E_37_79) % 0x100_0000
}

fn has_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("sha") {
        return "no";
    }
    if cfg!(target_arch = "x86_64") { "yes" } else { "unknown" }
}
