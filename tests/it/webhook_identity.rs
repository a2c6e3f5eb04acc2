//! Which two deliveries are one: by provider, endpoint and id, or by their bodies.

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use futures_util::FutureExt as _;
use tower_idempotency::webhook::{GitHub, WebhookLayer};
use tower_idempotency::{Fingerprint, Settlement, Tenant, Tx};

use crate::support::senders::{SECRET, Sender};
use crate::support::{Gate, Service, database, effects, layer_of, paid, serve, serve_behind};

/// A service that has one effect, `paid`, for each delivery to `/`.
async fn receiver(layer: WebhookLayer) -> Service {
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    serve_behind(layer, handler).await
}

#[tokio::test]
async fn one_id_with_another_body_is_refused_unless_the_body_is_free_to_change() {
    // Where the id is not signed, whoever has one delivery could otherwise burn the id of another.
    for sender in [Sender::GitHub, Sender::Shopify, Sender::Standard] {
        let db = database().await;
        let service = receiver(sender.layer(&db)).await;
        let first = sender.deliver_body(&service, "/", "d", b"{\"a\":1}").send().await;
        let other = sender.deliver_body(&service, "/", "d", b"{\"a\":2}").send().await;
        other.is_rejected(422, "key-reused");
        sender.deliver_body(&service, "/", "d", b"{\"a\":1}").send().await.replays(&first);
        assert_eq!(effects(&db, "paid").await, 1, "{sender:?}");
    }
}

#[tokio::test]
async fn an_event_that_nobody_has_signed_does_not_burn_the_real_delivery_unheard() {
    for (sender, header) in [
        (Sender::GitHub, "x-github-event"),
        (Sender::Shopify, "x-shopify-topic"),
        (Sender::Shopify, "x-shopify-shop-domain"),
    ] {
        let db = database().await;
        let service = receiver(sender.layer(&db)).await;
        let forged = sender.deliver(&service, "/", "d").header(header, "forged").send().await;
        assert_eq!(forged.status, 201, "{sender:?}");
        let real = sender.deliver(&service, "/", "d").header(header, "real").send().await;
        real.is_rejected(422, "key-reused");
        assert_eq!(effects(&db, "paid").await, 1, "{sender:?}");
    }
}

#[tokio::test]
async fn one_signed_id_is_one_event_although_its_body_has_changed() {
    let db = database().await;
    let service = receiver(Sender::Stripe.layer(&db)).await;
    let body = Sender::Stripe.body("evt_1");
    let first = Sender::Stripe.deliver_body(&service, "/", "", body.as_bytes()).send().await;
    assert_eq!(first.status, 201);
    let later = body.replace("\"pending_webhooks\":1", "\"pending_webhooks\":0");
    assert_ne!(later, body);
    Sender::Stripe.deliver_body(&service, "/", "", later.as_bytes()).send().await.replays(&first);
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn one_id_from_two_providers_or_at_two_endpoints_is_two_deliveries() {
    let db = database().await;
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    let stripe = || Sender::Stripe.layer(&db).operation("hook");
    let by_path = Sender::Stripe
        .layer(&db)
        .operation("hook")
        .endpoint_from_fn(|parts| parts.uri.path().strip_prefix("/to/").map(str::to_owned));
    let router = Router::new()
        .route("/plain", post(handler).route_layer(stripe()))
        .route("/a", post(handler).route_layer(stripe().endpoint("a")))
        .route("/to/{endpoint}", post(handler).route_layer(by_path))
        .route("/slack", post(handler).route_layer(Sender::Slack.layer(&db).operation("hook")))
        .route("/unnamed", post(handler).route_layer(Sender::Stripe.layer(&db)));
    let service = serve(router).await;
    for path in ["/plain", "/a", "/to/b", "/to/c", "/unnamed"] {
        let answer = Sender::Stripe.deliver(&service, path, "e").send().await;
        assert!(answer.status == 201 && !answer.is_replay(), "{path}: {answer:?}");
        assert!(Sender::Stripe.deliver(&service, path, "e").send().await.is_replay(), "{path}");
    }
    let answer = Sender::Slack.deliver(&service, "/slack", "e").send().await;
    assert!(answer.status == 201 && !answer.is_replay(), "{answer:?}");
    assert_eq!(effects(&db, "paid").await, 6);
    let tenants: Vec<String> = sqlx::query_scalar("select tenant_id from idempotency.record order by 1")
        .fetch_all(&*db)
        .await
        .unwrap();
    assert_eq!(tenants, ["slack", "stripe", "stripe", "stripe/a", "stripe/b", "stripe/c"]);
}

#[tokio::test]
async fn deliveries_told_apart_by_body_cannot_be_multiplied_under_ids_of_ones_own() {
    let db = database().await;
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    let github = || Sender::GitHub.layer(&db);
    let router = Router::new()
        .route("/id", post(handler).route_layer(github()))
        .route("/body", post(handler).route_layer(github().by_body()));
    let service = serve(router).await;
    // The price of an id that nobody has signed.
    for minted in ["one", "two"] {
        assert!(!Sender::GitHub.deliver(&service, "/id", minted).send().await.is_replay());
    }
    assert_eq!(effects(&db, "paid").await, 2);

    let first = Sender::GitHub.deliver(&service, "/body", "one").send().await;
    Sender::GitHub.deliver(&service, "/body", "two").send().await.replays(&first);
    let other = Sender::GitHub.deliver_body(&service, "/body", "one", b"{}").send().await;
    assert!(other.status == 201 && !other.is_replay(), "{other:?}");
    assert_eq!(effects(&db, "paid").await, 4);
}

#[tokio::test]
async fn a_shared_layer_lends_its_database_and_its_limits_and_not_its_rules_for_requests() {
    let db = database().await;
    let shared = layer_of(&db, Tenant::from_fn(|_| None::<String>))
        .operation("payments.create")
        .methods([axum::http::Method::PUT])
        .optional()
        .key_policy(|_| false)
        .settle_with(|_| Settlement::Fail)
        .fingerprint(Fingerprint::without_body())
        .retention(Duration::ZERO)
        .body_limit(1);
    let layer = WebhookLayer::sharing(shared.clone(), GitHub::new([SECRET]).unwrap());
    layer.check().await.unwrap();
    let gate = Gate::shut();
    let held = gate.clone();
    let handler = async move |mut tx: Tx| {
        held.pass().await;
        paid(&mut tx).await
    };
    let service = serve_behind(layer.clone(), handler).await;
    let first = tokio::spawn(Sender::GitHub.deliver(&service, "/", "d").send());
    let reached = tokio::time::timeout(Duration::from_secs(20), gate.reached(1)).await;
    reached.expect("the delivery does not get to its handler");
    // Either of them waits for it at the end.
    assert!(shared.drain().now_or_never().is_none() && layer.drain().now_or_never().is_none());
    gate.let_pass(1);
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    shared.drain().await;
    Sender::GitHub.deliver(&service, "/", "d").send().await.replays(&first);
    let other = Sender::GitHub.deliver_body(&service, "/", "d", b"{}").send().await;
    other.is_rejected(422, "key-reused");
    let record: (String, String) =
        sqlx::query_as("select tenant_id, operation from idempotency.record").fetch_one(&*db).await.unwrap();
    assert_eq!(record, ("github".to_owned(), "POST /".to_owned()));
}
