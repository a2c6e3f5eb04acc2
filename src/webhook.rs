//! Webhooks: verified, then claimed like any other key.

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
