//! The service: three routes, and the layer that verifies and claims what comes in.

use std::env;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use sqlx::PgPool;
use tower_idempotency::inbox::Advanced;
use tower_idempotency::outbox::{self, Event};
use tower_idempotency::webhook::{GitHub, StandardWebhooks, Stripe, WebhookDelivery, WebhookLayer};
use tower_idempotency::{IdempotencyLayer, Inbox, Tenant, Tx};

use crate::BoxError;

/// The routes of the senders whose secret there is, and their layers.
pub(crate) fn router(pool: &PgPool, secrets: Secrets) -> Result<(Router, Vec<WebhookLayer>), BoxError> {
    // One layer for all that use the pool: they count their transactions together.
    let base = IdempotencyLayer::new(pool.clone(), Tenant::single());
    let mut router = Router::new();
    let mut layers = Vec::new();
    if let Some(secret) = secrets.github {
        let layer = WebhookLayer::sharing(base.clone(), GitHub::new([secret])?).operation("webhooks.github");
        router = router.route("/webhooks/github", post(on_push).route_layer(layer.clone()));
        layers.push(layer);
    }
    if let Some(secret) = secrets.stripe {
        let layer = WebhookLayer::sharing(base.clone(), Stripe::new([secret])?).operation("webhooks.stripe");
        router = router.route("/webhooks/stripe", post(on_subscription).route_layer(layer.clone()));
        layers.push(layer);
    }
    if let Some(secret) = secrets.standard {
        let layer = WebhookLayer::sharing(base, StandardWebhooks::new([secret])?);
        let layer = layer.operation("webhooks.standard");
        router = router.route("/webhooks/standard", post(on_message).route_layer(layer.clone()));
        layers.push(layer);
    }
    if layers.is_empty() {
        return Err("no secret is set; `--help` names the variables".into());
    }
    Ok((router, layers))
}

/// A push: one row. What happened is read from the body, which is signed, and not from the header
/// `X-GitHub-Event`, which is not.
async fn on_push(mut tx: Tx, Json(push): Json<Push>) -> Result<StatusCode, Failed> {
    let Some(reference) = push.reference else {
        // A ping, or something that this service has not asked for: done, with nothing to do.
        return Ok(StatusCode::NO_CONTENT);
    };
    sqlx::query("insert into push (reference) values ($1)").bind(reference).execute(&mut *tx).await?;
    Ok(StatusCode::ACCEPTED)
}

#[derive(Deserialize)]
struct Push {
    #[serde(rename = "ref")]
    reference: Option<String>,
}

/// A subscription has changed. Stripe promises no order: the state in a late event must not replace
/// a newer one, so each subscription is a stream of the inbox, which knows the newest version that
/// was applied. Of two events of one second the second one is dropped, too; a service for which that
/// matters fetches the object.
async fn on_subscription(mut tx: Tx, Json(event): Json<StripeEvent>) -> Result<Response, Failed> {
    let Some(object) = event.data.object.filter(|_| event.kind.starts_with("customer.subscription.")) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let inbox = Inbox::new("subscriptions");
    if inbox.advance(&mut tx, &object.id, event.created).await? == Advanced::Stale {
        // Done, with nothing to do: a 2xx, so that it does not come again.
        return Ok((StatusCode::OK, "late: a newer one is known").into_response());
    }
    sqlx::query(
        "insert into subscription (id, status) values ($1, $2)
         on conflict (id) do update set status = excluded.status",
    )
    .bind(object.id)
    .bind(object.status)
    .execute(&mut *tx)
    .await?;
    Ok((StatusCode::OK, "applied").into_response())
}

#[derive(Deserialize)]
struct StripeEvent {
    #[serde(rename = "type")]
    kind: String,
    created: i64,
    data: StripeData,
}

#[derive(Deserialize)]
struct StripeData {
    object: Option<Subscription>,
}

#[derive(Deserialize)]
struct Subscription {
    id: String,
    #[serde(default)]
    status: String,
}

/// A message that means work. It goes to the outbox in the same transaction, a relay hands it to
/// whoever does it, and the answer is a quick 202: the sender waits for seconds only.
async fn on_message(delivery: WebhookDelivery, mut tx: Tx, body: Bytes) -> Result<StatusCode, Failed> {
    let event = Event::new("report", delivery.id(), "report.requested").bytes(body);
    outbox::publish(&mut tx, &event).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Nothing is kept, and the sender's retry runs.
pub(crate) struct Failed(BoxError);

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::error!(error = &*self.0 as &dyn std::error::Error, "a delivery failed");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

pub(crate) struct Secrets {
    github: Option<String>,
    stripe: Option<String>,
    standard: Option<String>,
}

impl Secrets {
    pub(crate) fn from_environment() -> Self {
        Self {
            github: env::var("GITHUB_WEBHOOK_SECRET").ok(),
            stripe: env::var("STRIPE_WEBHOOK_SECRET").ok(),
            standard: env::var("STANDARD_WEBHOOKS_SECRET").ok(),
        }
    }

    pub(crate) fn for_the_tour() -> Self {
        Self {
            github: Some(GITHUB_SECRET.to_owned()),
            stripe: Some(STRIPE_SECRET.to_owned()),
            standard: Some(STANDARD_SECRET.to_owned()),
        }
    }
}

/// Of the tour's senders, who are on this machine and nowhere else.
pub(crate) const GITHUB_SECRET: &str = "It's a Secret to Everybody";
pub(crate) const STRIPE_SECRET: &str = "whsec_of_the_tour";
pub(crate) const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(crate) const SCHEMA: &str = "
    create table push (id bigint generated always as identity primary key, reference text not null);
    create table subscription (id text primary key, status text not null);
";
