//! The promises, each against a real PostgreSQL and over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod cancel;
mod concurrency;
mod fingerprint;
mod fingerprint_forms;
mod keys;
mod rejections;
mod replay;
mod reuse;
mod scope;
mod waiting;
