//! A webhook's delivery is claimed like any other key: one effect, however often it comes.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sqlx::PgPool;
use tower_idempotency::webhook::{WebhookDelivery, WebhookLayer};
use tower_idempotency::{Settlement, Tx};

use crate::support::senders::{SENDERS, Sender, now};
use crate::support::{
    Gate, Runs, Service, database, effect, effects, no_transaction_is_left, paid, records, serve,
    serve_behind, states,
};

/// A service that has one effect, `paid`, for each delivery to `/`.
async fn receiver(layer: WebhookLayer) -> Service {
    let handler = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        (StatusCode::ACCEPTED, format!("{{\"id\":{id}}}"))
    };
    serve_behind(layer, handler).await
}

#[tokio::test]
async fn a_redelivery_gets_the_stored_2xx_and_the_effect_stays_one() {
    for sender in SENDERS {
        let db = database().await;
        let service = receiver(sender.layer(&db)).await;
        let first = sender.deliver(&service, "/", "evt_1").send().await;
        assert_eq!(first.status, 202, "{sender:?}: {first:?}");
        // Signed anew, under a later timestamp.
        let body = sender.body("evt_1");
        let again = sender.signed_at(&service, "/", "evt_1", now() + 7, body.as_bytes()).send().await;
        again.replays(&first);
        assert_eq!(effects(&db, "paid").await, 1, "{sender:?}");
        let other = sender.deliver_body(&service, "/", "evt_2", sender.body("evt_2").as_bytes()).send().await;
        assert!(other.status == 202 && !other.is_replay(), "{sender:?}: {other:?}");
        assert_eq!(effects(&db, "paid").await, 2, "{sender:?}");
        no_transaction_is_left(&db).await;
    }
}

#[tokio::test]
async fn a_tampered_body_has_no_effect_and_leaves_no_record() {
    for sender in SENDERS {
        let db = database().await;
        let service = receiver(sender.layer(&db)).await;
        let tampered = sender.body("evt_1").replace('}', " }");
        let answer = sender.deliver(&service, "/", "evt_1").body(tampered).send().await;
        answer.is_rejected(401, "delivery-unverified");
        assert_eq!((effects(&db, "paid").await, records(&db).await), (0, 0), "{sender:?}");
        let real = sender.deliver(&service, "/", "evt_1").send().await;
        assert_eq!(real.status, 202, "{sender:?}: {real:?}");
    }
}

#[tokio::test]
async fn a_failing_handler_leaves_no_trace_so_the_retry_runs() {
    for status in [500, 503, 400, 404, 422, 302, 410] {
        let db = database().await;
        let runs = Runs::default();
        let handler = move |mut tx: Tx| {
            let runs = runs.clone();
            async move {
                effect(&mut tx, "paid").await.unwrap();
                let first = runs.next() == 1;
                if first { StatusCode::from_u16(status).unwrap() } else { StatusCode::OK }
            }
        };
        let layer = Sender::Stripe.layer(&db);
        let service = serve_behind(layer, handler).await;
        let failed = Sender::Stripe.deliver(&service, "/", "evt_1").send().await;
        assert_eq!(failed.status, status);
        assert_eq!((effects(&db, "paid").await, records(&db).await), (0, 0), "{status}");
        let retry = Sender::Stripe.deliver(&service, "/", "evt_1").send().await;
        assert!(retry.status == 200 && !retry.is_replay(), "{status}: {retry:?}");
        assert_eq!(effects(&db, "paid").await, 1, "{status}");
    }
}

#[tokio::test]
async fn a_handler_can_settle_a_delivery_that_will_never_be_good() {
    let db = database().await;
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = async move |_: Tx| -> Response {
        counted.next();
        (StatusCode::UNPROCESSABLE_ENTITY, Settlement::Fail, "unknown account").into_response()
    };
    let layer = Sender::GitHub.layer(&db);
    let service = serve_behind(layer, handler).await;
    let first = Sender::GitHub.deliver(&service, "/", "d").send().await;
    assert_eq!(first.status, 422);
    Sender::GitHub.deliver(&service, "/", "d").send().await.replays(&first);
    assert_eq!(runs.count(), 1);
    assert_eq!(states(&db).await, ["failed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_in_flight_is_told_to_come_again_later() {
    let db = database().await;
    let gate = Gate::shut();
    let held = gate.clone();
    let handler = move |mut tx: Tx| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            paid(&mut tx).await
        }
    };
    let usual = Sender::Standard.layer(&db);
    let busy = usual.clone().idempotency(|layer| layer.in_flight_status(StatusCode::TOO_MANY_REQUESTS));
    let router = Router::new()
        .route("/", post(handler.clone()).route_layer(usual.operation("hook")))
        .route("/busy", post(handler).route_layer(busy.operation("busy")));
    let service = serve(router).await;
    for (path, status, run) in [("/", 503, 1), ("/busy", 429, 2)] {
        let first = tokio::spawn(Sender::Standard.deliver(&service, path, "msg").send());
        gate.reached(run).await;
        let duplicate = Sender::Standard.deliver(&service, path, "msg").send().await;
        duplicate.is_rejected(status, "in-flight");
        assert_eq!(duplicate.header("retry-after"), Some("1"));
        gate.let_pass(run);
        let first = first.await.unwrap();
        assert_eq!(first.status, 201);
        Sender::Standard.deliver(&service, path, "msg").send().await.replays(&first);
    }
    assert_eq!(effects(&db, "paid").await, 2);
}

#[tokio::test]
async fn the_handler_gets_the_bytes_as_they_came_and_knows_who_sent_them() {
    let db = database().await;
    let handler = async |delivery: WebhookDelivery, _: Tx, body: Bytes| {
        let stamp = delivery.timestamp();
        format!("{} {:?} {} {stamp:?} {body:?}", delivery.provider(), delivery.endpoint(), delivery.id())
    };
    let named = Sender::Standard.layer(&db).endpoint("eu");
    let plain = Sender::GitHub.layer(&db);
    let router = Router::new()
        .route("/eu", post(handler).route_layer(named))
        .route("/", post(handler).route_layer(plain));
    let service = serve(router).await;
    let (at, body) = (now(), b"\xff\0 {");
    let answer = Sender::Standard.signed_at(&service, "/eu", "msg_1", at, body).send().await;
    assert_eq!(answer.text(), format!(r#"standard-webhooks Some("eu") msg_1 Some({at}) b"\xff\0 {{""#));
    let answer = Sender::GitHub.deliver_body(&service, "/", "d-1", b"").send().await;
    assert_eq!(answer.text(), r#"github None d-1 None b"""#);
}

/// One delivery whose response is not kept, in the way that `forget` does it.
async fn forgotten(db: &PgPool, layer: WebhookLayer, forget: impl AsyncFnOnce()) {
    let service = receiver(layer).await;
    let first = Sender::Standard.deliver(&service, "/", "msg").send().await;
    assert_eq!(first.status, 202);
    forget().await;
    let again = Sender::Standard.deliver(&service, "/", "msg").send().await;
    assert_eq!(again.status, 200, "a 410 would end the subscription: {again:?}");
    assert!(again.is_replay() && again.body.is_empty(), "{again:?}");
    assert_eq!(effects(db, "paid").await, 1);
}

#[tokio::test]
async fn what_is_done_is_answered_with_200_although_its_response_is_not_kept() {
    let db = database().await;
    let layer = Sender::Standard.layer(&db).idempotency(|layer| layer.response_limit(0));
    forgotten(&db, layer, async || {}).await;
}

#[tokio::test]
async fn what_is_done_is_answered_with_200_under_a_tombstone() {
    let db = database().await;
    let year = std::time::Duration::from_secs(365 * 86_400);
    let layer = Sender::Standard.layer(&db).idempotency(|layer| layer.tombstone(year));
    forgotten(&db, layer, async || {
        let aged = sqlx::query("update idempotency.record set expires_at = now() - interval '1 second'");
        assert_eq!(aged.execute(&*db).await.unwrap().rows_affected(), 1);
        tower_idempotency::Sweeper::new(db.clone()).run_once().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn records_stay_as_long_as_the_provider_can_deliver_again() {
    for (sender, days) in [
        (Sender::GitHub, 4),
        (Sender::Shopify, 2),
        (Sender::Slack, 2),
        (Sender::Standard, 7),
        (Sender::Stripe, 31),
    ] {
        let db = database().await;
        let service = receiver(sender.layer(&db)).await;
        sender.deliver(&service, "/", "d").send().await;
        let kept: i32 = sqlx::query_scalar(
            "select round(extract(epoch from expires_at - now()) / 86400)::int from idempotency.record",
        )
        .fetch_one(&*db)
        .await
        .unwrap();
        assert_eq!(kept, days, "{sender:?}");
    }
}
