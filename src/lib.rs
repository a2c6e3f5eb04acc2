#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod layer;
mod service;
mod key;
mod scope;
mod fingerprint;
mod claim;
mod connection;
mod flight;
mod in_flight;
mod settled;
mod wait;
mod execute;
mod tx;
mod idempotency;
mod detach;
mod settlement;
mod buffer;
mod settle;
mod recover;
mod record;
mod replay;
mod rejection;
mod retention;
mod sweep;
mod operation;
pub mod inbox;
pub mod outbox;
mod downstream;
#[cfg(feature = "webhook")]
#[cfg_attr(docsrs, doc(cfg(feature = "webhook")))]
pub mod webhook;
mod migrate;
mod error;
mod telemetry;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

/// Pages to read once.
pub mod guide {
    #[doc = include_str!("guide/layer_order.md")]
    pub mod layer_order {}
}

pub use connection::Isolation;
pub use downstream::DownstreamKey;
pub use error::Error;
pub use fingerprint::Fingerprint;
pub use idempotency::Idempotency;
pub use inbox::Inbox;
pub use key::{IDEMPOTENCY_KEY, IdempotencyKey, InvalidKey};
pub use layer::IdempotencyLayer;
pub use migrate::migrate;
pub use operation::{Operation, Ran};
pub use record::Resource;
pub use rejection::{Rejection, RejectionKind, Retry};
pub use replay::IDEMPOTENT_REPLAYED;
pub use retention::Retention;
pub use scope::{Tenant, TenantValue};
pub use service::{IdempotencyService, ResponseFuture};
pub use settlement::Settlement;
pub use sweep::{Sweeper, Swept};
pub use telemetry::Outcome;
pub use tx::{Tx, TxHandle};
