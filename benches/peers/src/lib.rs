//! The same payment behind several ways to make it safe to retry.

mod book;
mod memory;
mod session;

use axum::Router;
use axum::extract::Json;
use axum::response::Response;
use axum::routing::post;
use harness::bank::{self, NewPayment};
use sqlx::PgPool;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx};

pub use book::book;
pub use memory::idempotent;
pub use session::{Sessions, in_memory, in_postgres};

/// This layer.
pub fn layer(pool: PgPool) -> Router {
    behind(IdempotencyLayer::new(pool, Tenant::single()).operation("payments.create"))
}

/// This layer, which keeps settled records in the process's memory, too. The keys are others.
pub fn layer_with_cache(pool: PgPool) -> Router {
    let layer = IdempotencyLayer::new(pool, Tenant::single()).operation("payments.create, cached");
    behind(layer.replay_cache(16 << 20))
}

fn behind(layer: IdempotencyLayer) -> Router {
    async fn create(mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        bank::answer(bank::pay(&mut tx, &new).await)
    }
    Router::new().route("/payments", post(create).route_layer(layer))
}
