//! Events, published in the transaction that makes them true.
//!
//! [`publish`] writes an [`Event`] into the table `idempotency.outbox`, in the business
//! transaction: it is committed with the effects, or not at all. A [`Relay`] delivers what is
//! committed, at least once, and in order per aggregate. A consumer that must not be told twice
//! puts an [`Inbox`](crate::Inbox) before its work.
//!
//! The table has the default columns of Debezium's outbox event router and is only ever inserted
//! into and deleted from, so that change data capture can deliver it instead.
//!
//! # Order
//!
//! Events of one aggregate are delivered in the order in which their rows were made. That is the
//! order of the commits if `publish` follows the statement that locks the aggregate's own row. Of
//! two transactions that publish for one aggregate and lock nothing, the second may commit first,
//! and is then delivered first.
//!
//! # Examples
//!
//! ```no_run
//! use axum::http::StatusCode;
//! use tower_idempotency::Tx;
//! use tower_idempotency::outbox::{self, Event};
//!
//! async fn ship(tx: &mut Tx, order: i64) -> Result<StatusCode, Box<dyn std::error::Error>> {
//!     sqlx::query("update orders set shipped = true where id = $1").bind(order).execute(&mut **tx).await?;
//!     let event = Event::new("order", order, "order.shipped").json(&serde_json::json!({"id": order}))?;
//!     outbox::publish(tx, &event).await?;
//!     Ok(StatusCode::OK)
//! }
//! ```

mod event;
mod publisher;
#[cfg(feature = "outbox-http")]
mod http;
#[cfg(feature = "outbox-nats")]
mod nats;
#[cfg(feature = "outbox-rabbitmq")]
mod rabbitmq;
mod relay;
mod run;
mod worker;
mod delivery;
mod lane;
mod outcome;
mod session;
mod backoff;
mod dead;

use std::slice;
use std::sync::LazyLock;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{Connection as _, Transaction};
use tokio::sync::watch;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::tx::Tx;

#[cfg(feature = "outbox-http")]
#[cfg_attr(docsrs, doc(cfg(feature = "outbox-http")))]
pub use self::http::HttpPublisher;
pub use backoff::Backoff;
pub use dead::{DeadLetter, DeadLetters};
pub use event::{Event, Payload};
#[cfg(feature = "outbox-nats")]
#[cfg_attr(docsrs, doc(cfg(feature = "outbox-nats")))]
pub use nats::NatsPublisher;
pub use publisher::{MemoryPublisher, PublishError, Publisher};
#[cfg(feature = "outbox-rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "outbox-rabbitmq")))]
pub use rabbitmq::RabbitMqPublisher;
pub use relay::{Relay, Relayed};

/// Publishes an event in this transaction.
///
/// Through the [`Tx`] of an idempotent request or [`Operation`](crate::Operation) the event carries
/// two headers more, [`OPERATION`] and [`OPERATION_ID`], and the relays of this process look for it
/// as soon as it is committed. Through another connection it carries what it was given; call
/// [`nudge`] after the commit, or leave it to the relay's next look.
///
/// Outside of a transaction the event is committed by itself, which is not what an outbox is for.
///
/// The statement keeps its name on a connection that has kept another one's, and is unnamed otherwise:
/// so for whoever uses unnamed ones, for the sake of a transaction-pooling proxy.
///
/// # Errors
///
/// If the event has an empty or overlong name, which leaves the transaction as it was; or if the
/// database refuses it, which aborts the transaction, as any failed statement does.
///
/// # Cancel safety
///
/// As with any statement, the transaction must be rolled back after the future was dropped.
pub async fn publish<C>(connection: &mut C, event: &Event) -> Result<(), Error>
where
    C: OutboxConnection + ?Sized,
{
    publish_all(connection, slice::from_ref(event)).await
}

/// Publishes events in this transaction, in one statement and in this order.
///
/// # Errors
///
/// As [`publish`]. Either all of them are published or none.
///
/// # Cancel safety
///
/// As [`publish`].
pub async fn publish_all<'e, C, I>(connection: &mut C, events: I) -> Result<(), Error>
where
    C: OutboxConnection + ?Sized,
    I: IntoIterator<Item = &'e Event>,
{
    let identity = connection.identity();
    let mut rows = Rows::default();
    for event in events {
        event.check()?;
        rows.push(event, identity.as_ref())?;
    }
    if rows.ids.is_empty() {
        return Ok(());
    }
    // Who keeps no statements on a connection has a proxy that mixes up their names.
    let keeps_statements = connection.connection().cached_statements_size() > 0;
    sqlx::query(include_str!("sql/outbox_publish.sql"))
        .persistent(keeps_statements)
        .bind(rows.ids)
        .bind(rows.aggregate_types)
        .bind(rows.aggregate_ids)
        .bind(rows.types)
        .bind(rows.json)
        .bind(rows.bytes)
        .bind(rows.headers)
        .execute(connection.connection())
        .await
        .map_err(|error| Error::database("publishing to the outbox", error))?;
    connection.published();
    Ok(())
}

/// Columns, as one statement takes them.
#[derive(Default)]
struct Rows<'e> {
    ids: Vec<uuid::Uuid>,
    aggregate_types: Vec<&'e str>,
    aggregate_ids: Vec<&'e str>,
    types: Vec<&'e str>,
    json: Vec<Option<&'e str>>,
    bytes: Vec<Option<&'e [u8]>>,
    headers: Vec<String>,
}

impl<'e> Rows<'e> {
    fn push(&mut self, event: &'e Event, identity: Option<&Idempotency>) -> Result<(), Error> {
        let (json, bytes) = match &event.payload {
            Payload::Empty => (None, None),
            Payload::Json(text) => {
                let text = std::str::from_utf8(text)
                    .map_err(|error| Error::value("the payload of an event is not JSON", error))?;
                (Some(text), None)
            }
            Payload::Bytes(bytes) => (None, Some(&bytes[..])),
        };
        let mut headers = event.headers.clone();
        if let Some(identity) = identity {
            headers.entry(OPERATION.into()).or_insert_with(|| identity.operation().to_owned());
            headers
                .entry(OPERATION_ID.into())
                .or_insert_with(|| identity.downstream_key(OUTBOX_STEP).to_string());
        }
        let headers = serde_json::to_string(&headers)
            .map_err(|error| Error::value("the headers of an event cannot be written as JSON", error))?;
        self.ids.push(event.id);
        self.aggregate_types.push(&event.aggregate_type);
        self.aggregate_ids.push(&event.aggregate_id);
        self.types.push(&event.event_type);
        self.json.push(json);
        self.bytes.push(bytes);
        self.headers.push(headers);
        Ok(())
    }
}

/// Wakes the relays of this process, after a commit. It is never necessary: they look by themselves.
///
/// Not a notification of the database, which would put all commits in one queue.
pub fn nudge() {
    NUDGES.send_modify(|count| *count = count.wrapping_add(1));
}

/// What can be published through: a [`Tx`], or anything that is a [`PgConnection`].
pub trait OutboxConnection: sealed::Sealed + Send {
    #[doc(hidden)]
    fn connection(&mut self) -> &mut PgConnection;

    #[doc(hidden)]
    fn identity(&self) -> Option<Idempotency> {
        None
    }

    #[doc(hidden)]
    fn published(&self) {}
}

impl OutboxConnection for Tx {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }

    fn identity(&self) -> Option<Idempotency> {
        Self::identity(self)
    }

    fn published(&self) {
        self.after_commit(async { nudge() });
    }
}

impl OutboxConnection for PgConnection {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

impl OutboxConnection for Transaction<'_, Postgres> {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

impl OutboxConnection for PoolConnection<Postgres> {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Tx {}
    impl Sealed for super::PgConnection {}
    impl Sealed for super::Transaction<'_, super::Postgres> {}
    impl Sealed for super::PoolConnection<super::Postgres> {}
}

/// The header with the operation's name, on events of an idempotent request.
pub const OPERATION: &str = "idempotency-operation";

/// The header with the operation's identity: a UUID derived from tenant, operation and key, the same
/// on every attempt. It is [`downstream_key("outbox")`](Idempotency::downstream_key), so that whoever
/// has the request can name its events. The key itself is not sent: whoever has it can ask for the
/// response.
pub const OPERATION_ID: &str = "idempotency-operation-id";

const OUTBOX_STEP: &str = "outbox";

/// Wakes whoever listens.
pub(crate) fn nudges() -> watch::Receiver<u64> {
    NUDGES.subscribe()
}

static NUDGES: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
