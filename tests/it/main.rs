//! The promises, each against a real PostgreSQL and over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod after_commit;
mod answers;
mod auth;
mod body;
mod body_limit;
mod cancel;
mod capacity;
mod check;
mod commit;
mod concurrency;
mod dropped;
mod ended_by_hand;
mod execution_timeout;
mod extractors;
mod failed;
mod fingerprint;
mod fingerprint_forms;
mod hang_up;
mod headers;
mod heavy;
mod in_place;
mod inbox;
mod inbox_process;
mod isolation;
mod kept_tx;
mod keys;
mod known_keys;
mod layer_order;
mod layer_twice;
mod migrate;
mod odd_responses;
mod operation;
mod outbox;
mod outbox_cdc;
#[cfg(feature = "outbox-http")]
mod outbox_http;
#[cfg(feature = "outbox-nats")]
mod outbox_nats;
#[cfg(feature = "outbox-rabbitmq")]
mod outbox_rabbitmq;
mod plain_tower;
mod rejections;
mod relay;
mod relay_drill;
mod relay_failures;
mod relay_leases;
mod replay;
mod rerun;
mod resource;
mod response_body;
mod retention;
mod reuse;
mod routing;
mod row_surprises;
mod runtime_ends;
mod schema;
mod scope;
mod session;
mod settings;
mod settlement;
mod shared_claims;
mod statements;
mod swallowed;
mod sweep;
mod telemetry;
mod transaction;
mod unprotected;
mod unreachable;
mod waiting;
#[cfg(feature = "webhook")]
mod webhook;
#[cfg(feature = "webhook")]
mod webhook_identity;
#[cfg(feature = "webhook")]
mod webhook_peers;
#[cfg(feature = "webhook")]
mod webhook_refused;
