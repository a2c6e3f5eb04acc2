//! One span a request, with one outcome from a closed list, and never the key itself.

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post, post_service};
use tower::{ServiceBuilder, ServiceExt as _};
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{IdempotencyKey, Outcome, Settlement, Tx};

use crate::support::{
    FAULTS, Faults, Fields, Gate, Log, Outer, SECRETS, Service, database, effects, layer, layer_of, payment,
    serve, serve_behind, tenant,
};

#[tokio::test]
async fn each_way_to_end_has_its_word() {
    let log = Log::capture();
    let db = database().await;
    let layer = layer(&db);
    let outer = Outer::default();
    let refused = async || (StatusCode::PAYMENT_REQUIRED, "declined");
    let router = Router::new()
        .route("/completed", get(async || "list").post(async |_: Tx| StatusCode::CREATED))
        .route("/failed", post(refused))
        .route("/released", post(async || StatusCode::BAD_GATEWAY))
        .route_layer(layer);
    let service = serve(outer.around(router)).await;

    for (method, path, outcome) in [
        ("POST", "/completed", Outcome::Completed),
        ("POST", "/completed", Outcome::Replayed),
        ("GET", "/completed", Outcome::Unprotected),
        ("POST", "/failed", Outcome::Failed),
        ("POST", "/failed", Outcome::Replayed),
        ("POST", "/released", Outcome::Released),
        ("POST", "/released", Outcome::Released),
    ] {
        service.call(method, path).key(path.trim_start_matches('/')).send().await;
        assert_eq!(word(&log).await, outcome.as_str(), "{method} {path}");
        assert_eq!(outer.last(), (Some(outcome), None), "{method} {path}");
    }
    assert_eq!(log.spans(), 0);
}

#[tokio::test]
async fn each_rejection_has_its_code_as_the_word() {
    let log = Log::capture();
    let faults = Faults::with(|layer| layer).await;
    for (code, ..) in FAULTS {
        faults.provoke(code).await;
        let (outcome, kind) = faults.outer.last();
        assert_eq!(outcome.map(Outcome::as_str), Some(code));
        assert_eq!(outcome, kind.map(Outcome::Rejected));
        let mut words = vec![word(&log).await];
        while log.spans() > 0 {
            words.push(word(&log).await);
        }
        assert!(words.iter().any(|word| word == code), "{code}: {words:?}");
        // What had to be there before: the first request, or the inner layer of two.
        assert!(words.iter().all(|word| word == code || word == "completed"), "{code}: {words:?}");
    }
}

#[tokio::test]
async fn without_a_key_the_word_is_unprotected_or_what_its_transaction_met() {
    let log = Log::capture();
    let db = database().await;
    let outer = Outer::default();
    let service = serve(outer.around(payment(&Gate::open(), layer(&db).optional()))).await;
    assert_eq!(service.post("/").send().await.status, 201);
    assert_eq!(outer.last(), (Some(Outcome::Unprotected), None));
    let span = log.span().await;
    assert_eq!(one(&span, "outcome"), "unprotected");
    assert!(!span.iter().any(|(name, _)| *name == "key"), "{span:?}");

    let closed = db.pool(1).await;
    closed.close().await;
    let service = serve(outer.around(payment(&Gate::open(), layer(&closed).optional()))).await;
    service.post("/").send().await.is_rejected(503, "database-unavailable");
    assert_eq!(word(&log).await, "database-unavailable");
    let (outcome, kind) = outer.last();
    assert_eq!(outcome, kind.map(Outcome::Rejected));
}

#[tokio::test]
async fn a_panic_and_an_error_of_the_inner_service_have_their_words() {
    let log = Log::capture();
    let db = database().await;
    let panics = async |_: Tx| -> StatusCode { panic!("the handler's own") };
    let fails = tower::service_fn(|_: Request<Body>| {
        std::future::ready(Err::<Response<Body>, _>(std::io::Error::other("down")))
    });
    let fails = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |error: std::io::Error| {
            (StatusCode::BAD_GATEWAY, error.to_string())
        }))
        .layer(layer(&db))
        .service(fails);
    let router = Router::new()
        .route("/panics", post(panics).route_layer(layer(&db)))
        .route("/fails", post_service(fails))
        .layer(CatchPanicLayer::new());
    let service = serve(router).await;
    for _ in 0..2 {
        assert_eq!(service.post("/panics").key("p").send().await.status, 500);
        assert_eq!(word(&log).await, Outcome::Panicked.as_str());
        let answer = service.post("/fails").key("f").send().await;
        assert_eq!((answer.status.as_u16(), answer.text()), (502, "down"));
        assert_eq!(word(&log).await, Outcome::ServiceError.as_str());
    }
}

#[tokio::test]
async fn the_span_names_the_operation_and_a_hash_of_the_key() {
    let log = Log::capture();
    let db = database().await;
    let service = serve(payment(&Gate::open(), layer(&db).operation("payments.create"))).await;
    let hash = IdempotencyKey::new("order-17").unwrap().short_hash();
    assert_eq!(hash.len(), 8);
    for key in ["order-17", "\"order-17\""] {
        service.post("/").key(key).send().await;
        let span = log.span().await;
        assert_eq!(one(&span, "operation"), "payments.create");
        assert_eq!(one(&span, "key"), hash);
    }
}

#[tokio::test]
async fn the_span_counts_reruns_and_has_one_outcome_all_the_same() {
    let log = Log::capture();
    let db = database().await;
    let gate = Gate::open();
    let runs = gate.clone();
    let handler = move || {
        let runs = runs.clone();
        async move {
            match runs.pass().await {
                3 => "done".into_response(),
                _ => (Settlement::Rerun, "again").into_response(),
            }
        }
    };
    let service = serve_behind(layer(&db), handler).await;
    assert_eq!(service.post("/").key("k").send().await.text(), "done");
    let span = log.span().await;
    assert_eq!(one(&span, "outcome"), "completed");
    let reruns: Vec<_> =
        span.iter().filter(|(name, _)| *name == "reruns").map(|(_, value)| value.as_str()).collect();
    assert_eq!(reruns, ["1", "2"]);
}

/// The execution goes on as a task, in the span of the request that began it.
#[tokio::test]
async fn a_request_whose_client_has_gone_still_has_its_outcome() {
    let log = Log::capture();
    let db = database().await;
    let gate = Gate::shut();
    let router = payment(&gate, layer(&db));
    let request = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let mut response = Box::pin(router.oneshot(request));
    tokio::select! {
        answer = &mut response => panic!("answered before it could: {answer:?}"),
        () = gate.reached(1) => drop(response),
    }
    assert_eq!(log.spans(), 0);
    gate.let_pass(1);
    assert_eq!(word(&log).await, "completed");
    assert_eq!(effects(&db, "paid").await, 1);
}

#[tokio::test]
async fn neither_key_nor_response_is_told_to_the_log() {
    let log = Log::capture();
    let faults = Faults::with(|layer| layer).await;
    for (code, ..) in FAULTS {
        faults.provoke(code).await;
        let text = log.text();
        for secret in [SECRETS[0], SECRETS[2]] {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{code} tells {secret:?}");
        }
    }
    assert!(log.text().contains("sqlx"), "the log does not hear everything");
}

/// Else whoever can send requests can set off the alarm.
#[tokio::test]
async fn a_fault_of_the_client_is_no_error_in_the_log() {
    let log = Log::capture();
    let faults = Faults::with(|layer| layer).await;
    let clients = FAULTS.iter().filter(|(_, status, ..)| (400..500).contains(status));
    for (code, ..) in clients {
        faults.provoke(code).await;
        let loud = |line: &&str| line.starts_with("ERROR") || line.starts_with("WARN");
        let text = log.text();
        assert_eq!(text.lines().find(loud), None, "{code}");
    }
    faults.provoke("transaction-aborted").await;
    assert!(log.text().lines().any(|line| line.starts_with("ERROR tower_idempotency")));
}

#[tokio::test]
async fn a_missing_matched_path_is_warned_of_once() {
    let log = Log::capture();
    let db = database().await;
    let unnamed = layer_of(&db, tenant());
    let service: Service = serve(Router::new().fallback(async || "done").layer(unnamed)).await;
    for key in ["a", "b"] {
        assert_eq!(service.post("/").key(key).send().await.status, 200);
    }
    let text = log.text();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("WARN") && line.contains("matched path")).count(),
        1
    );
}

/// The outcome of the next span; there is one.
async fn word(log: &Log) -> String {
    one(&log.span().await, "outcome").to_owned()
}

#[track_caller]
fn one<'a>(span: &'a Fields, field: &str) -> &'a str {
    let values: Vec<&str> =
        span.iter().filter(|(name, _)| *name == field).map(|(_, value)| value.as_str()).collect();
    let [value] = values[..] else { panic!("not one {field}: {span:?}") };
    value
}
