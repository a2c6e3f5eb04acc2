//! Events over HTTP: what we sign is what our own receiver verifies, and each answer means what it
//! says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::AsyncReadExt as _;
use tower_idempotency::Tx;
use tower_idempotency::outbox::{DeadLetters, Event, HttpPublisher};
use tower_idempotency::webhook::{SigningKeys, WebhookDelivery};

use crate::support::outbox::{commit, drain, event, losing, relay, time_passes, waiting, waits};
use crate::support::senders::{STANDARD_SECRET, Sender};
use crate::support::{Service, database, effect, effects, records, serve, serve_behind};

fn keys() -> SigningKeys {
    SigningKeys::new([STANDARD_SECRET]).unwrap()
}

fn publisher(service: &Service, path: &str) -> HttpPublisher {
    HttpPublisher::new(&format!("http://{}{path}", service.address), keys()).unwrap()
}

/// One answer, whatever is asked.
async fn answering(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Service {
    serve(Router::new().route("/", post(async move || answer()))).await
}

#[tokio::test]
async fn a_webhook_layer_verifies_what_is_sent_and_a_redelivery_has_one_effect() {
    let (sending, receiving) = (database().await, database().await);
    let handler = async |delivery: WebhookDelivery, mut tx: Tx, body: Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        effect(&mut tx, &format!("{} {}", delivery.id(), body["amount"])).await.unwrap();
        StatusCode::ACCEPTED
    };
    let layer = Sender::Standard.layer(&receiving).idempotency(|layer| layer.operation("events"));
    let service = serve(Router::new().route("/events", post(handler).route_layer(layer))).await;
    let event = Event::new("payment", 1, "payment.created").json(&json!({"b": 1, "amount": 1250})).unwrap();
    commit(&sending, std::slice::from_ref(&event)).await;
    let relay = relay(&sending, losing(publisher(&service, "/events")));
    let first = relay.run_once().await.unwrap();
    assert_eq!((first.published, first.failed), (0, 1));
    let name = format!("{} 1250", event.id());
    assert_eq!(effects(&receiving, &name).await, 1);

    time_passes(&sending).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
    assert_eq!(waiting(&sending).await, 0);
    assert_eq!(effects(&receiving, &name).await, 1);
    assert_eq!(records(&receiving).await, 1);
}

#[tokio::test]
async fn a_receiver_with_another_secret_gets_nothing_done() {
    let (sending, receiving) = (database().await, database().await);
    let handler = async |mut tx: Tx| {
        effect(&mut tx, "done").await.unwrap();
        StatusCode::ACCEPTED
    };
    let layer = Sender::Standard.layer(&receiving).idempotency(|layer| layer.operation("events"));
    let service = serve_behind(layer, handler).await;
    let other = SigningKeys::new(["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]).unwrap();
    let publisher = HttpPublisher::new(&format!("http://{}/", service.address), other).unwrap();
    commit(&sending, &[event("a", 1)]).await;
    assert_eq!(relay(&sending, publisher).run_once().await.unwrap().failed, 1);
    assert_eq!(effects(&receiving, "done").await, 0);
}

#[tokio::test]
async fn the_message_says_what_the_event_says() {
    let seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>> = Arc::default();
    let received = Arc::clone(&seen);
    let handler = async move |headers: HeaderMap, body: Bytes| {
        received.lock().unwrap().push((headers, body));
        StatusCode::NO_CONTENT
    };
    let service = serve(Router::new().route("/", post(handler))).await;
    let db = database().await;
    let json = Event::new("order", 7, "order.placed")
        .json(&json!({"n": 1}))
        .unwrap()
        .header("x-trace", "t1")
        .header("Host", "elsewhere")
        .header("content-length", "3")
        .header("webhook-id", "another");
    let bytes = Event::new("order", "8 \u{e9}", "order.placed")
        .bytes(&b"\xff\x00"[..])
        .header("content-type", "application/protobuf");
    let empty = Event::new("order", 9, "order.gone");
    commit(&db, &[json.clone(), bytes.clone(), empty.clone()]).await;
    drain(&relay(&db, publisher(&service, "/"))).await;

    let seen = seen.lock().unwrap();
    let of = |event: &Event| {
        let id = event.id().to_string();
        seen.iter().find(|(headers, _)| headers["webhook-id"] == id.as_str()).unwrap()
    };
    let (headers, body) = of(&json);
    assert_eq!(serde_json::from_slice::<Value>(body).unwrap(), json!({"n": 1}));
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-trace"], "t1");
    assert_eq!(headers["host"], service.address.to_string().as_str());
    let names = ["event-type", "aggregate-type", "aggregate-id"];
    assert_eq!(names.map(|name| headers[name].as_bytes()), [&b"order.placed"[..], b"order", b"7"]);
    let (headers, body) = of(&bytes);
    assert_eq!(
        (&body[..], &headers["content-type"]),
        (&b"\xff\x00"[..], &"application/protobuf".parse().unwrap())
    );
    assert_eq!(headers["aggregate-id"].as_bytes(), "8 \u{e9}".as_bytes());
    let (headers, body) = of(&empty);
    assert!(body.is_empty() && !headers.contains_key("content-type"), "{headers:?}");
}

/// What becomes of an event: (delivered, given up at the first of many attempts, given up at the last).
async fn outcomes(service: &Service) -> (bool, bool, bool) {
    let db = database().await;
    let mut found = Vec::new();
    for most in [25, 1] {
        commit(&db, &[event("a", 1)]).await;
        let relayed = relay(&db, publisher(service, "/")).max_attempts(most).run_once().await.unwrap();
        found.push(relayed);
        sqlx::raw_sql("truncate idempotency.outbox, idempotency.outbox_lane").execute(&*db).await.unwrap();
    }
    (found[0].published == 1, found[0].dead == 1, found[1].dead == 1)
}

#[tokio::test]
async fn each_status_means_delivered_or_given_up_or_again_for_some_time_or_for_ever() {
    let (delivered, dead) = ((true, false, false), (false, true, true));
    let (bounded, unbounded) = ((false, false, true), (false, false, false));
    let table = [
        (delivered, &[200, 201, 202, 204, 299][..]),
        (dead, &[410]),
        (bounded, &[300, 301, 302, 304, 400, 401, 403, 404, 409, 422, 451, 500, 501, 599]),
        (unbounded, &[408, 425, 429, 502, 503, 504]),
    ];
    for (outcome, statuses) in table {
        for status in statuses {
            let status = StatusCode::from_u16(*status).unwrap();
            let service = answering(move || status.into_response()).await;
            assert_eq!(outcomes(&service).await, outcome, "{status}");
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached_makes_no_dead_letter() {
    let mut service = answering(|| StatusCode::OK.into_response()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    service.address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(outcomes(&service).await, (false, false, false));
}

/// Seconds until the one lane that there is may be tried again.
async fn pause(pool: &PgPool) -> f64 {
    sqlx::query_scalar("select extract(epoch from ready_at - now())::float8 from idempotency.outbox_lane")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn retry_after_is_kept_in_seconds_and_as_a_date() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3_600));
    for (status, value, expected) in [
        (503, "3600", 3_600.0),
        (429, date.as_str(), 3_600.0),
        (500, " 120 ", 120.0),
        // A day is the longest, whoever asks.
        (503, "99999999999999999999999", 86_400.0),
        (503, "Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        (503, "soon", 0.0),
        (503, "-5", 0.0),
        (503, "", 0.0),
    ] {
        let (status, asked) = (StatusCode::from_u16(status).unwrap(), value.to_owned());
        let service = answering(move || (status, [("retry-after", asked.clone())]).into_response()).await;
        let db = database().await;
        commit(&db, &[event("a", 1)]).await;
        assert_eq!(relay(&db, publisher(&service, "/")).run_once().await.unwrap().failed, 1);
        let pause = pause(&db).await;
        assert!((expected - 10.0..=expected + 1.0).contains(&pause), "{status} {value:?}: {pause}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let followed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&followed);
    let elsewhere = move || {
        seen.store(true, Ordering::SeqCst);
        async { StatusCode::OK }
    };
    let redirect = async || (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]);
    let router = Router::new().route("/", post(redirect)).route("/elsewhere", post(elsewhere));
    let service = serve(router).await;
    let db = database().await;
    commit(&db, &[event("a", 1)]).await;
    relay(&db, publisher(&service, "/")).max_attempts(1).run_once().await.unwrap();
    assert!(!followed.load(Ordering::SeqCst));
    let letters = DeadLetters::new(db.clone()).list(1).await.unwrap();
    assert!(letters[0].error.contains("redirects are not followed"), "{}", letters[0].error);
}

#[tokio::test]
async fn an_endpoint_that_stands_still_or_dies_before_its_answer_makes_no_dead_letter() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let publisher = HttpPublisher::new(&endpoint, keys()).unwrap().timeout(Duration::from_secs(5));
    let db = database().await;
    commit(&db, &[event("a", 1)]).await;
    let relay = relay(&db, publisher).max_attempts(1);
    // The kernel takes the connection, and nobody the request. The relay's time is over first.
    waits(&db, &relay.clone().publish_timeout(Duration::from_millis(50))).await;
    let dies = async {
        loop {
            // It is closed when its request has come.
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 64]).await;
        }
    };
    tokio::select! {
        () = waits(&db, &relay) => {}
        () = dies => {}
    }
    drop(tokio::spawn(
        async move { axum::serve(listener, Router::new().route("/", post(async || ()))).await },
    ));
    time_passes(&db).await;
    assert_eq!(relay.run_once().await.unwrap().published, 1);
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_given_up_in_time() {
    let handler = async || std::future::pending::<()>().await;
    let service = serve(Router::new().route("/", post(handler))).await;
    let db = database().await;
    commit(&db, &[event("a", 1)]).await;
    let publisher = publisher(&service, "/").timeout(Duration::from_millis(50));
    let relay = relay(&db, publisher).max_attempts(1);
    // The relay's own limit is 30 seconds.
    tokio::time::timeout(Duration::from_secs(20), waits(&db, &relay)).await.unwrap();
    let error: String =
        sqlx::query_scalar("select last_error from idempotency.outbox_lane").fetch_one(&*db).await.unwrap();
    assert_eq!(error, "the endpoint did not answer in time");
}

#[tokio::test]
async fn a_header_that_http_cannot_carry_makes_a_dead_letter_and_the_aggregate_goes_on() {
    let service = answering(|| StatusCode::OK.into_response()).await;
    let db = database().await;
    let torn = [event("a", 1).header("no name", "x"), event("a", 2).header("x", "a\r\nwebhook-id: b")];
    commit(&db, &torn).await;
    commit(&db, &[event("a", 3)]).await;
    let relay = relay(&db, publisher(&service, "/"));
    drain(&relay).await;
    let letters = DeadLetters::new(db.clone()).list(10).await.unwrap();
    let dead: Vec<_> = letters.iter().map(|letter| (letter.event.id(), letter.attempts)).collect();
    assert_eq!(dead.len(), 2, "{letters:?}");
    assert!(torn.iter().all(|event| dead.contains(&(event.id(), 1))), "{letters:?}");
    assert_eq!(waiting(&db).await, 0);
}

#[test]
fn an_endpoint_that_could_not_be_reached_safely_is_refused_at_once() {
    for (endpoint, why) in [
        ("https://example.com/", "with_connector"),
        ("/events", "absolute"),
        ("example.com", "absolute"),
        ("ftp://example.com/", "absolute"),
        ("not a url", "absolute"),
        ("http://user:secret@example.com/", "user"),
    ] {
        let error = HttpPublisher::new(endpoint, keys()).unwrap_err().to_string();
        assert!(error.contains(why), "{endpoint}: {error}");
    }
    let shown = format!("{:?}", HttpPublisher::new("http://example.com/token?x=y", keys()).unwrap());
    assert!(shown.contains("example.com") && !shown.contains("token"), "{shown}");
}
