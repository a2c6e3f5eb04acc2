//! Where there is no broker: the shop posts its events to the warehouse. The layer that verifies them
//! is the inbox, too: the event's id is the key.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use tokio::sync::mpsc;
use tower_idempotency::Tx;
use tower_idempotency::outbox::{Event, HttpPublisher, PublishError, Publisher};
use tower_idempotency::webhook::{SigningKeys, StandardWebhooks, WebhookLayer};

use crate::BoxError;
use crate::shop::{Failed, Order};
use crate::warehouse::{Warehouse, reserve};

/// The warehouse's side.
pub(crate) fn router(warehouse: &Warehouse) -> Result<Router, BoxError> {
    let shop = WebhookLayer::new(warehouse.pool.clone(), StandardWebhooks::new([SECRET])?);
    Ok(Router::new().route("/events", post(on_event).route_layer(shop.operation("shop.events"))))
}

async fn on_event(mut tx: Tx, Json(order): Json<Order>) -> Result<StatusCode, Failed> {
    reserve(&mut tx, &order).await?;
    Ok(StatusCode::ACCEPTED)
}

/// The relay's side, which loses the first acknowledgement, and tells of each.
pub(crate) fn publisher(
    warehouse: SocketAddr,
    told: mpsc::UnboundedSender<String>,
) -> Result<impl Publisher, BoxError> {
    let endpoint = format!("http://{warehouse}/events");
    let publisher = Arc::new(HttpPublisher::new(&endpoint, SigningKeys::new([SECRET])?)?);
    let is_lost = Arc::new(AtomicBool::new(true));
    Ok(move |event: Event| {
        let (publisher, is_lost, told) = (Arc::clone(&publisher), Arc::clone(&is_lost), told.clone());
        async move {
            publisher.publish(event).await?;
            if is_lost.swap(false, Ordering::SeqCst) {
                drop(told.send("delivered: reserved, and the acknowledgement is lost".to_owned()));
                return Err(PublishError::unavailable("the acknowledgement was lost"));
            }
            drop(told.send("delivered again: acknowledged, with the stored response".to_owned()));
            Ok(())
        }
    })
}

/// Of the tour, which is on this machine and nowhere else.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
