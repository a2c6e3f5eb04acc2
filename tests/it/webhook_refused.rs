//! What is not the provider's: a 401 that says nothing, and a reason in the telemetry.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn};
use axum::routing::{any, post};
use http_body_util::BodyExt as _;
use tower_idempotency::Tx;
use tower_idempotency::webhook::{Refusal, StandardWebhooks, WebhookLayer};

use crate::support::senders::{Clock, SECRET, SENDERS, Sender, now};
use crate::support::{Answer, Log, Raw, Service, database, effects, paid, records, serve};

async fn receiver(layer: WebhookLayer) -> Service {
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    serve(Router::new().route("/", any(handler).layer(layer))).await
}

/// All that a sender can see.
fn seen(answer: &Answer) -> String {
    let lines: BTreeSet<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| *name != "date")
        .map(|(name, value)| format!("{name}: {value:?}"))
        .collect();
    format!("{} {lines:?} {}", answer.status, answer.text())
}

/// What is wrong with a delivery, and the reason that the telemetry gives.
fn forgeries(service: &Service) -> Vec<(&'static str, crate::support::Call)> {
    let sender = Sender::Standard;
    let deliver = || sender.deliver(service, "/", "msg");
    let at = |seconds: i64| sender.signed_at(service, "/", "msg", now() + seconds, b"{}");
    let stamped = |text: &str| {
        service
            .post("/")
            .header("webhook-id", "msg")
            .header("webhook-timestamp", text)
            .header("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
            .json("{}")
    };
    vec![
        ("header-missing", service.post("/").json("{}")),
        ("header-repeated", deliver().header("webhook-signature", "v1,AA==")),
        ("header-repeated", deliver().header("webhook-timestamp", now().to_string())),
        ("header-repeated", deliver().header("webhook-id", "other")),
        ("header-malformed", {
            let call = service.post("/").header("webhook-id", "msg").header("webhook-timestamp", "1");
            call.header("webhook-signature", "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=").json("{}")
        }),
        ("timestamp-malformed", stamped("-9223372036854775808")),
        ("timestamp-malformed", stamped("+1")),
        ("timestamp-malformed", stamped("01")),
        ("timestamp-malformed", stamped("1e9")),
        ("timestamp-old", at(-310)),
        ("timestamp-ahead", at(310)),
        ("signature-mismatch", deliver().body("{}")),
        ("signature-mismatch", stamped(&now().to_string())),
    ]
}

#[tokio::test]
async fn a_forger_learns_nothing_and_the_operator_learns_why() {
    let db = database().await;
    let log = Log::capture();
    let extensions: Arc<Mutex<Vec<Option<Refusal>>>> = Arc::default();
    let noted = Arc::clone(&extensions);
    let note = from_fn(move |request: Request, next: Next| {
        let noted = Arc::clone(&noted);
        async move {
            let response = next.run(request).await;
            noted.lock().unwrap().push(response.extensions().get().copied());
            response
        }
    });
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    let layer = Sender::Standard.layer(&db);
    let service = serve(Router::new().route("/", post(handler).route_layer(layer)).layer(note)).await;
    let mut answers = BTreeSet::new();
    for (reason, call) in forgeries(&service) {
        let answer = call.send().await;
        answer.is_rejected(401, "delivery-unverified");
        assert_eq!(answer.json()["retry"], "never");
        assert!(answer.header("www-authenticate").is_some());
        answers.insert(seen(&answer));
        let refusal = extensions.lock().unwrap().pop().unwrap().map(Refusal::as_str);
        assert_eq!(refusal, Some(reason));
        let span = log.span().await;
        assert!(span.contains(&("refusal", reason.to_owned())), "{span:?}");
        assert!(span.contains(&("outcome", "delivery-unverified".to_owned())), "{span:?}");
        assert!(span.contains(&("provider", "standard-webhooks".to_owned())), "{span:?}");
    }
    assert_eq!(answers.len(), 1, "{answers:#?}");
    assert!(log.text().contains("WARN"), "{}", log.text());
    assert_eq!((effects(&db, "paid").await, records(&db).await), (0, 0));
}

#[tokio::test]
async fn no_secret_and_no_signature_is_logged() {
    let db = database().await;
    let log = Log::capture();
    for sender in SENDERS {
        let layer = sender.layer(&db);
        let shown = format!("{layer:?} {:?}", tower_layer::Layer::layer(&layer, ()));
        let service = receiver(layer).await;
        sender.deliver(&service, "/", "evt_1").send().await;
        sender.deliver(&service, "/", "evt_1").body("{}").send().await;
        let told = format!("{shown} {}", log.text());
        for secret in [SECRET, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(!told.contains(secret), "{told}");
        }
        for (name, value) in sender.headers("evt_1", now(), sender.body("evt_1").as_bytes()) {
            assert!(!name.contains("signature") || !told.contains(&value), "{told}");
        }
        assert!(told.contains("delivery\", \"evt_1\"") || sender == Sender::Slack, "{told}");
    }
}

#[tokio::test]
async fn what_has_no_signature_is_refused_before_its_body_is_read() {
    let db = database().await;
    let service = receiver(Sender::GitHub.layer(&db)).await;
    let mut socket = Raw::connect(service.address).await;
    // The body never comes.
    socket
        .write("POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 26214400\r\n\r\n")
        .await;
    let answer = tokio::time::timeout(Duration::from_secs(20), socket.rest()).await;
    let answer = answer.expect("the service waits for the body");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[tokio::test]
async fn a_large_body_is_taken_up_to_the_providers_own_limit() {
    let db = database().await;
    let handler = async |_: Tx, body: axum::body::Bytes| body.len().to_string();
    let layer = Sender::GitHub.layer(&db);
    let standard = Sender::Standard.layer(&db);
    let router = Router::new()
        .route("/", post(handler).route_layer(layer))
        .route("/small", post(handler).route_layer(standard));
    let service = serve(router).await;
    let limit = 25 << 20;
    let most = vec![b' '; limit];
    let answer = Sender::GitHub.deliver_body(&service, "/", "large", &most).send().await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "26214400"));
    let over = vec![b' '; limit + 1];
    let answer = Sender::GitHub.deliver_body(&service, "/", "over", &over).send().await;
    answer.is_rejected(413, "body-too-large");
    let over = vec![b' '; (1 << 20) + 1];
    let answer = Sender::Standard.deliver_body(&service, "/small", "over", &over).send().await;
    answer.is_rejected(413, "body-too-large");
}

#[tokio::test]
async fn other_methods_do_not_pass_unclaimed() {
    let db = database().await;
    let service = receiver(Sender::GitHub.layer(&db)).await;
    let first = Sender::GitHub.deliver(&service, "/", "d").send().await;
    assert_eq!(first.status, 201);
    for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let body = Sender::GitHub.body("d");
        let headers = Sender::GitHub.headers("d", now(), body.as_bytes()).into_iter();
        let call = headers.fold(service.call(method, "/"), |call, (name, value)| call.header(name, value));
        let answer = call.json(&body).send().await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some("POST")), "{method}");
    }
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn a_verified_delivery_without_a_usable_id_is_a_400() {
    let db = database().await;
    let github = receiver(Sender::GitHub.layer(&db)).await;
    let long = "a".repeat(256);
    for id in ["", "two words", &long] {
        let answer = Sender::GitHub.deliver(&github, "/", id).send().await;
        answer.is_rejected(400, "delivery-unidentified");
    }
    // But 401 to whoever is not GitHub.
    let answer = Sender::GitHub.deliver(&github, "/", "").body("{}").send().await;
    answer.is_rejected(401, "delivery-unverified");

    let stripe = receiver(Sender::Stripe.layer(&db)).await;
    for body in [&b"{}"[..], br#"{"id":7}"#, br#"{"id":"a b"}"#, br#"{"id":"\u00e9"}"#, b"\xff"] {
        let answer = Sender::Stripe.deliver_body(&stripe, "/", "", body).send().await;
        answer.is_rejected(400, "delivery-unidentified");
    }
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn an_endpoint_that_the_request_does_not_name_is_a_403() {
    let db = database().await;
    let layer = Sender::Stripe.layer(&db).endpoint_from_fn(|parts| {
        let named = parts.headers.get("x-endpoint")?.to_str().ok()?;
        Some(named.to_owned())
    });
    let service = receiver(layer).await;
    let deliver = || Sender::Stripe.deliver(&service, "/", "evt");
    let long = "a".repeat(191);
    for call in [deliver(), deliver().header("x-endpoint", ""), deliver().header("x-endpoint", long.as_str())]
    {
        call.send().await.is_rejected(403, "tenant-missing");
    }
    assert_eq!(deliver().header("x-endpoint", &long[1..]).send().await.status, 201);
}

#[tokio::test]
async fn time_is_read_from_the_clock_that_is_given() {
    let db = database().await;
    let clock = Clock::at(1_614_265_330);
    let provider = || StandardWebhooks::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
    let five_minutes = WebhookLayer::new(db.clone(), provider()).clock(clock.reader()).operation("hook");
    let none = WebhookLayer::new(db.clone(), provider().tolerance(Duration::ZERO));
    let none = none.clock(clock.reader()).operation("hook");
    let handler = async |mut tx: Tx| paid(&mut tx).await;
    let router = Router::new()
        .route("/", post(handler).route_layer(five_minutes))
        .route("/exact", post(handler).route_layer(none));
    let service = serve(router).await;
    for (path, now, status) in [
        ("/", 1_614_265_330 + 301, 401),
        ("/", 1_614_265_330 - 301, 401),
        ("/exact", 1_614_265_331, 401),
        ("/exact", 1_614_265_329, 401),
        ("/", 1_614_265_330 + 300, 201),
        ("/", 1_614_265_330 - 300, 201),
        ("/exact", 1_614_265_330, 201),
    ] {
        clock.set(now);
        let id = format!("msg_{path}_{now}");
        let answer = Sender::Standard.signed_at(&service, path, &id, 1_614_265_330, b"{}").send().await;
        assert_eq!(answer.status, status, "{path} at {now}");
    }
}

#[tokio::test]
async fn a_service_draws_the_refusal_in_its_own_form() {
    let db = database().await;
    let layer = Sender::GitHub.layer(&db).idempotency(|layer| {
        layer.rejection_with(|rejection| {
            let mut response = axum::http::Response::new(axum::body::Body::from("no"));
            *response.status_mut() = rejection.status();
            response.headers_mut().insert(HeaderName::from_static("x-own"), HeaderValue::from_static("1"));
            response
        })
    });
    let service = receiver(layer).await;
    let answer = service.post("/").send().await;
    assert_eq!((answer.status.as_u16(), answer.text(), answer.header("x-own")), (401, "no", Some("1")));
}

#[tokio::test]
async fn a_sender_that_stops_midway_is_not_a_delivery() {
    let db = database().await;
    let service = receiver(Sender::GitHub.layer(&db)).await;
    let body = Sender::GitHub.body("d");
    let mut socket = Raw::connect(service.address).await;
    let mut head =
        "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ntransfer-encoding: chunked\r\n".to_owned();
    for (name, value) in Sender::GitHub.headers("d", now(), body.as_bytes()) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    socket.write(format!("{head}\r\n")).await;
    socket.chunk(&body).await;
    socket.end().await;
    let answer = socket.rest().await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(records(&db).await, 0);
}

#[tokio::test]
async fn frames_do_not_change_what_is_signed() {
    let db = database().await;
    let service = receiver(Sender::GitHub.layer(&db)).await;
    let body = Sender::GitHub.body("d");
    let frames = body.clone().into_bytes().into_iter().map(|byte| {
        Ok::<_, std::convert::Infallible>(http_body::Frame::data(axum::body::Bytes::from(vec![byte])))
    });
    let framed = http_body_util::StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    let call = Sender::GitHub.deliver(&service, "/", "d").body(axum::body::Body::new(framed));
    assert_eq!(call.send().await.status, 201);
}
