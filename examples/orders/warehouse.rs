//! The service that reserves stock: a message and its reservation are committed together, once.

use sqlx::{PgConnection, PgPool};
use tower_idempotency::Inbox;
use tower_idempotency::inbox::Processed;

use crate::BoxError;
use crate::shop::Order;

#[derive(Clone)]
pub(crate) struct Warehouse {
    pub(crate) pool: PgPool,
    inbox: Inbox,
}

impl Warehouse {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool, inbox: Inbox::new("stock") }
    }

    /// A message from the broker. When this has returned, unless the outcome is unknown, it can be
    /// acknowledged.
    pub(crate) async fn receive(&self, id: &str, payload: &[u8]) -> Result<Processed<()>, BoxError> {
        let order: Order = serde_json::from_slice(payload)?;
        self.inbox.process(&self.pool, id, async |mut tx| reserve(&mut tx, &order).await).await
    }
}

pub(crate) async fn reserve(connection: &mut PgConnection, order: &Order) -> Result<(), BoxError> {
    sqlx::query("update stock set quantity = quantity - $2 where item = $1")
        .bind(&order.item)
        .bind(order.quantity)
        .execute(&mut *connection)
        .await?;
    sqlx::query("insert into reservation (order_id, quantity) values ($1, $2)")
        .bind(order.id)
        .bind(order.quantity)
        .execute(connection)
        .await?;
    Ok(())
}

/// Nothing here forbids a second reservation of one order: the inbox does.
pub(crate) const SCHEMA: &str = "
    create table stock (item text primary key, quantity bigint not null check (quantity >= 0));
    create table reservation (order_id bigint not null, quantity bigint not null);
    insert into stock values ('lamp', 10)";
