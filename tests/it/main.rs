//! The promises, each against a real PostgreSQL and over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod cancel;
mod replay;
mod settlement;
mod failed;
mod commit;
mod hang_up;
mod in_place;
mod kept_tx;
mod transaction;
mod ended_by_hand;
mod rerun;
mod after_commit;
mod layer_twice;
mod execution_timeout;
