//! The promises, each against a real PostgreSQL and over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod auth;
mod body;
mod body_limit;
mod cancel;
mod capacity;
mod check;
mod concurrency;
mod fingerprint;
mod fingerprint_forms;
mod keys;
mod migrate;
mod plain_tower;
mod rejections;
mod replay;
mod retention;
mod reuse;
mod routing;
mod schema;
mod scope;
mod statements;
mod sweep;
mod unreachable;
mod waiting;
mod settlement;
mod failed;
mod commit;
mod hang_up;
mod in_place;
mod kept_tx;
mod transaction;
mod ended_by_hand;
mod response_body;
mod resource;
mod headers;
mod unprotected;
mod extractors;
mod operation;
mod rerun;
mod after_commit;
mod layer_twice;
mod execution_timeout;
