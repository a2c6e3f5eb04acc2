//! Webhooks: verified, then claimed like any other key. With the feature `webhook`.
//!
//! A webhook is a message from an untrusted edge, and it comes more than once. A [`WebhookLayer`]
//! checks the signature over the bytes as they came, before anything is parsed or stored; then the
//! provider is the tenant, the delivery's id is the key, and the rest is as with an
//! [`IdempotencyLayer`](crate::IdempotencyLayer): effects and response commit together, and a
//! redelivery gets the stored 2xx.
//!
//! ```no_run
//! use axum::{Json, Router, http::StatusCode, routing::post};
//! use tower_idempotency::{Tx, webhook::{GitHub, WebhookLayer}};
//!
//! # fn app(pool: sqlx::PgPool) -> Result<Router, Box<dyn std::error::Error>> {
//! let github = WebhookLayer::new(pool, GitHub::new([std::env::var("GITHUB_WEBHOOK_SECRET")?])?);
//! let app = Router::new()
//!     .route("/webhooks/github", post(on_push).route_layer(github.operation("webhooks.github")));
//! # Ok(app)
//! # }
//!
//! async fn on_push(mut tx: Tx, Json(push): Json<serde_json::Value>) -> Result<StatusCode, StatusCode> {
//!     sqlx::query("insert into push (reference) values ($1)")
//!         .bind(push["ref"].as_str())
//!         .execute(&mut *tx)
//!         .await
//!         .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?; // nothing is kept, and a redelivery runs
//!     Ok(StatusCode::ACCEPTED)
//! }
//! ```
//!
//! # Whose deliveries
//!
//! | provider | signed | the key | body limit | kept for | one id, another body |
//! |---|---|---|---|---|---|
//! | [`GitHub`] | body | `X-GitHub-Delivery`, not signed | 25 MiB | 4 days | 422 |
//! | [`Stripe`] | time, body | `id` in the body | 1 MiB | 31 days | the same event |
//! | [`StandardWebhooks`] | id, time, body | `webhook-id` | 1 MiB | 7 days | 422 |
//! | [`Slack`] | time, body | `event_id` in the body | 1 MiB | 2 days | the same event |
//! | [`Shopify`] | body | `X-Shopify-Webhook-Id`, not signed | 10 MiB | 2 days | 422 |
//!
//! For any other, write a [`Provider`]: its documentation has one with a shared secret and one with a
//! public key.
//!
//! Where the id is not signed, one captured delivery can be sent again under other ids;
//! [`by_body`](WebhookLayer::by_body) tells deliveries apart by their bytes. Where no time is signed,
//! that is possible for as long as the secret is in use, not for five minutes.
//!
//! # What the sender gets
//!
//! | the delivery | the answer |
//! |---|---|
//! | is new | the handler's; only a 2xx is recorded, anything else is undone and forgotten |
//! | is done | the stored 2xx; a 200 if it was not kept |
//! | is being executed | 503 with `Retry-After`, so that it comes again ([settable](crate::IdempotencyLayer::in_flight_status)) |
//! | has no right signature, or no time that is near | 401, always the same; why is a [`Refusal`] in span, log and response extensions |
//! | is the provider's, but has no id that could be a key | 400 |
//! | has the id of another one | 422, where the table above says so |
//! | is too large | 413 |
//! | is no POST | 405 |
//!
//! # Order
//!
//! No provider promises one. An event carries the state of a moment, and a late one must not replace
//! a newer one. The [`Inbox`](crate::Inbox) knows the newest version that was applied to each thing:
//!
//! ```
//! use axum::http::StatusCode;
//! use tower_idempotency::inbox::Advanced;
//! use tower_idempotency::{Inbox, Tx};
//!
//! async fn subscription_changed(
//!     tx: &mut Tx,
//!     subscription: &str,
//!     created: i64,
//! ) -> Result<StatusCode, Box<dyn std::error::Error>> {
//!     let inbox = Inbox::new("subscriptions");
//!     if inbox.advance(tx, subscription, created).await? == Advanced::Stale {
//!         return Ok(StatusCode::OK); // late: done, with nothing to do, and it does not come again
//!     }
//!     // .. apply it, in the same transaction.
//!     Ok(StatusCode::OK)
//! }
//! ```
//!
//! The version must grow with each change. Of two events with one version the second is stale, too:
//! where a provider only tells the second, as Stripe does, fetch the object if that matters.
//!
//! # Heavy work
//!
//! Providers wait for a few seconds (Slack for 3, Shopify for 5, GitHub for 10), and the transaction
//! is open while the handler runs. [Publish](crate::outbox::publish) what is to be done in the same
//! transaction, answer 202, and let a consumer do it. `examples/webhooks` does both.
//!
//! # Sending
//!
//! [`sign`] makes the headers of Standard Webhooks for a message of your own.

mod layer;
mod service;
mod delivery;
mod refusal;
mod secret;
mod ed25519;
mod header;
mod json;
mod provider;
mod github;
mod shopify;
mod slack;
mod standard;
mod stripe;
mod sign;
#[cfg(test)]
mod testing;

pub use delivery::WebhookDelivery;
pub use ed25519::Ed25519Keys;
pub use github::GitHub;
pub use header::{base64, fresh, hex, single, unix_seconds};
pub use layer::WebhookLayer;
pub use provider::{Provider, Unverified, Verified, by_id};
pub use refusal::Refusal;
pub use secret::{ConfigError, HmacSha256Keys, Secret};
pub use service::WebhookService;
pub use shopify::Shopify;
pub use sign::{SigningKeys, Unsignable, sign};
pub use slack::Slack;
pub use standard::StandardWebhooks;
pub use stripe::Stripe;

use sha2::{Digest as _, Sha256};

/// A body's own name: `sha256-` and 64 hexadecimal digits.
fn body_hash(body: &[u8]) -> String {
    let hash = Sha256::digest(body);
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{digits}")
}
