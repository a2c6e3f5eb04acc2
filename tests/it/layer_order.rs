//! The guide page on layer order: the whole stack runs, and each layer on the wrong side has the
//! effect that the page names.

mod inner;
mod outer;

use std::io::Write as _;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use sqlx::PgPool;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer};
use tower_idempotency::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, Tenant, Tx};
use tracing::Level;

use crate::support::{
    Logs, database, effect, effects, layer_of, no_transaction_is_left, records, serve, states,
};

#[derive(Clone)]
struct User {
    account: String,
}

fn account(headers: &HeaderMap) -> Option<String> {
    let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    token.strip_prefix("Bearer ").map(str::to_owned)
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(account) = account(request.headers()) else { return StatusCode::UNAUTHORIZED.into_response() };
    request.extensions_mut().insert(User { account });
    next.run(request).await
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Answers with as much as is worth compressing, unless it is told to panic, or to refuse.
async fn create_payment(mut tx: Tx, Json(new): Json<Value>) -> Response {
    let id = effect(&mut tx, "paid").await.unwrap();
    match new["amount"].as_i64() {
        Some(666) => panic!("the handler panics"),
        Some(amount) if amount > 0 => {
            let body = format!("{{\"id\":{id},\"note\":\"{}\"}}", "x".repeat(500));
            (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        _ => StatusCode::PAYMENT_REQUIRED.into_response(),
    }
}

fn trace() -> TraceLayer<tower_http::classify::SharedClassifier<tower_http::classify::ServerErrorsAsFailures>>
{
    TraceLayer::new_for_http()
        .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
        .on_response(DefaultOnResponse::new().level(Level::INFO))
}

/// As on the page.
fn app(pool: &PgPool) -> Router {
    let idempotent = layer_of(pool, Tenant::extension(|user: &User| user.account.clone()));
    let create_payment = post(create_payment)
        .route_layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, Duration::from_secs(10)))
        .route_layer(idempotent.operation("payments.create"));
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, IDEMPOTENCY_KEY])
        .expose_headers([header::LOCATION, header::RETRY_AFTER, IDEMPOTENT_REPLAYED]);
    let outside = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(trace())
        .layer(CatchPanicLayer::new())
        .layer(cors)
        .layer(CompressionLayer::new())
        .layer(from_fn(authenticate))
        .layer(DefaultBodyLimit::max(1024 * 1024))
        .layer(RequestBodyLimitLayer::new(256 * 1024))
        .layer(RequestDecompressionLayer::new());
    Router::new().route("/payments", create_payment).layer(outside)
}

#[tokio::test]
async fn the_whole_stack_runs() {
    let logs = Logs::capture();
    let db = database().await;
    let service = serve(app(&db)).await;
    let pay = |key: &str, body: &str| {
        let call = service.post("/payments").header("authorization", "Bearer alice");
        call.header("origin", "https://shop.example").key(key).json(body)
    };

    let preflight = service.call("OPTIONS", "/payments").header("origin", "https://shop.example");
    let preflight = preflight.header("access-control-request-method", "POST").send().await;
    assert_eq!(preflight.status, 200);
    let allowed = preflight.header("access-control-allow-headers").unwrap().to_lowercase();
    assert!(allowed.contains("idempotency-key"), "{allowed}");
    assert_eq!(service.post("/payments").key("k").json("{}").send().await.status, 401);

    let first = pay("k", r#"{"amount":1}"#).header("accept-encoding", "gzip").send().await;
    assert_eq!((first.status.as_u16(), first.header("content-encoding")), (201, Some("gzip")));
    let replay = pay("k", r#"{ "amount": 1 }"#).send().await;
    assert!(replay.is_replay(), "{replay:?}");
    assert_eq!((replay.status.as_u16(), replay.header("content-encoding")), (201, None));
    assert_eq!(replay.json()["id"], 1);
    assert_eq!(replay.header("access-control-allow-origin"), Some("*"));
    let exposed = replay.header("access-control-expose-headers").unwrap().to_lowercase();
    assert!(exposed.contains("idempotent-replayed"), "{exposed}");
    assert!(replay.header("x-request-id").is_some_and(|id| first.header("x-request-id") != Some(id)));

    let zipped = pay("k", "").header("content-encoding", "gzip").body(gzip(br#"{"amount":1}"#, 9));
    assert!(zipped.send().await.is_replay());
    pay("k", r#"{"amount":2}"#).send().await.is_rejected(422, "key-reused");
    pay("", "{}").send().await.is_rejected(400, "key-malformed");
    assert_eq!(pay("panics", r#"{"amount":666}"#).send().await.status, 500);
    let declined = pay("declined", r#"{"amount":0}"#).send().await;
    assert_eq!(declined.status, 402);
    assert!(pay("declined", r#"{"amount":0}"#).send().await.is_replay());
    assert_eq!(pay("large", "").body(vec![b' '; 300_000]).send().await.status, 413);

    assert_eq!(states(&db).await, ["completed", "failed"]);
    assert_eq!(effects(&db, "paid").await, 1);
    assert_eq!(records(&db).await, 2);
    no_transaction_is_left(&db).await;
    assert_eq!(logs.lines_with("finished processing request").len(), 11, "{}", logs.text());
}
