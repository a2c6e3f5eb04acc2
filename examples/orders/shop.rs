//! The service that takes orders: an order and its event are committed together, once.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tower_idempotency::outbox::{self, Event};
use tower_idempotency::{IdempotencyLayer, Tenant, Tx};

use crate::BoxError;

pub(crate) fn router(pool: &PgPool) -> Router {
    let idempotent = IdempotencyLayer::new(pool.clone(), Tenant::single()).operation("orders.create");
    Router::new().route("/orders", post(create_order).route_layer(idempotent))
}

/// What the customer sends, and, with the order's number, what the warehouse gets.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    #[serde(default)]
    pub(crate) id: i64,
    pub(crate) item: String,
    pub(crate) quantity: i64,
}

async fn create_order(mut tx: Tx, Json(mut order): Json<Order>) -> Result<Response, Failed> {
    order.id = sqlx::query_scalar("insert into orders (item, quantity) values ($1, $2) returning id")
        .bind(&order.item)
        .bind(order.quantity)
        .fetch_one(&mut *tx)
        .await?;
    // In the same transaction. The relay looks for it as soon as that is committed.
    let event = Event::new("order", order.id, "order.placed").json(&order)?;
    outbox::publish(&mut tx, &event).await?;
    Ok((StatusCode::CREATED, Json(order)).into_response())
}

/// Nothing is kept, and the client's retry runs.
pub(crate) struct Failed(BoxError);

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::error!(error = &*self.0 as &dyn std::error::Error, "a request failed");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

pub(crate) const SCHEMA: &str = "
    create table orders (
      id bigint generated always as identity primary key,
      item text not null,
      quantity bigint not null check (quantity > 0)
    )";
