//! The promises, each against a real PostgreSQL and over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod auth;
mod body;
mod body_limit;
mod cancel;
mod capacity;
mod check;
mod migrate;
mod plain_tower;
mod replay;
mod retention;
mod routing;
mod schema;
mod statements;
mod sweep;
mod unreachable;
