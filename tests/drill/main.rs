//! The fault drill: services as processes of their own, a durable PostgreSQL, a network of our own
//! between them, and everything that can break broken while clients insist on their answers.
//!
//! `DRILL_SECONDS` is how long faults are made (default 10), `DRILL_SEED` which ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod random;
mod network;
mod wire;
#[path = "../shared/signal.rs"]
mod signal;
mod itself;
mod service;
mod site;
mod client;
mod intent;
mod faults;
mod check;
mod mixed;
mod pgbouncer;
mod failover;
mod storm;
mod any_message;
mod late_begin;
mod one_fault;
mod outbox;

/// Not a test: the other process. It serves when this program has started itself as one.
#[test]
fn service() {
    service::run();
}

/// Not a test either: a relay, or a consumer.
#[test]
fn outbox_process() {
    outbox::process::run();
}
