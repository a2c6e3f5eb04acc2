//! Whose key it is: auth as a layer and auth as an extractor.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sqlx::PgPool;
use tower_idempotency::{Tenant, Tx};
use uuid::Uuid;

use crate::support::{
    Call, Logs, Service, database, effect, effects, layer_of, records, serve, serve_behind, states,
};

#[derive(Clone)]
struct User {
    account: Option<String>,
}

/// The account that a token stands for. `expired` is nobody's.
fn account(headers: &HeaderMap) -> Option<String> {
    let token = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    (token != "expired").then(|| token.split('-').next().unwrap_or_default().to_owned())
}

fn unauthorized() -> Response {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], "who are you?").into_response()
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(account) = account(request.headers()) else { return unauthorized() };
    request.extensions_mut().insert(User { account: Some(account) });
    next.run(request).await
}

/// Auth as an extractor, which has state and asks the database.
struct AuthUser {
    account: String,
}

impl FromRequestParts<PgPool> for AuthUser {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, pool: &PgPool) -> Result<Self, Response> {
        let Some(account) = account(&parts.headers) else { return Err(unauthorized()) };
        let account = sqlx::query_scalar("select 'account ' || $1").bind(account).fetch_one(pool).await;
        Ok(Self { account: account.unwrap() })
    }
}

async fn pay(mut tx: Tx) -> (StatusCode, String) {
    let id = effect(&mut tx, "paid").await.unwrap();
    (StatusCode::CREATED, id.to_string())
}

fn paid(service: &Service, token: &str) -> Call {
    service.post("/").key("k").header("authorization", format!("Bearer {token}")).json("{}")
}

async fn tenants(pool: &PgPool) -> Vec<String> {
    let tenants = sqlx::query_scalar("select tenant_id from idempotency.record order by tenant_id");
    tenants.fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn auth_as_a_layer_that_sets_an_extension_resolves_the_tenant() {
    let db = database().await;
    let layer = layer_of(&db, Tenant::extension(|user: &User| user.account.clone())).operation("pay");
    let app = Router::new().route("/", post(pay).route_layer(layer)).layer(from_fn(authenticate));
    let service = serve(app).await;
    let alice = paid(&service, "alice").send().await;
    assert_eq!(alice.status, 201);
    // Another token of the same account; then another account with the same key.
    paid(&service, "alice-2").send().await.replays(&alice);
    let bob = paid(&service, "bob").send().await;
    assert_eq!((bob.status.as_u16(), bob.is_replay()), (201, false));
    assert_eq!(tenants(&db).await, ["alice", "bob"]);
    assert_eq!(effects(&db, "paid").await, 2);
}

#[tokio::test]
async fn auth_as_an_extractor_resolves_the_tenant_even_if_it_needs_the_only_connection() {
    let db = database().await;
    let pool = db.pool(1).await;
    let tenant = Tenant::extractor(pool.clone(), |user: AuthUser| user.account);
    let layer = layer_of(&pool, tenant).operation("pay");
    let service = serve_behind(layer, pay).await;
    let alice = paid(&service, "alice").send().await;
    assert_eq!(alice.status, 201);
    paid(&service, "alice").send().await.replays(&alice);
    assert_eq!(paid(&service, "bob").send().await.status, 201);
    assert_eq!(tenants(&db).await, ["account alice", "account bob"]);
}

#[tokio::test]
async fn the_rejection_of_an_extractor_is_the_answer_and_nothing_is_stored() {
    let db = database().await;
    let tenant = Tenant::extractor(PgPool::clone(&db), |user: AuthUser| user.account);
    let layer = layer_of(&db, tenant).operation("pay");
    let service = serve_behind(layer, pay).await;
    let refused = paid(&service, "expired").send().await;
    assert_eq!((refused.status.as_u16(), refused.text()), (401, "who are you?"));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    // The refreshed token's retry runs.
    assert_eq!(paid(&service, "alice").send().await.status, 201);
}

#[derive(Clone, Default)]
struct Extractions(Arc<AtomicUsize>);

struct Counted;

impl<S: Sync> FromRequestParts<S> for Counted {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        parts.extensions.get::<Extractions>().unwrap().0.fetch_add(1, Ordering::SeqCst);
        Ok(Self)
    }
}

#[tokio::test]
async fn an_extractor_runs_once_in_the_layer_and_once_in_the_handler() {
    let db = database().await;
    let layer = layer_of(&db, Tenant::extractor((), |_: Counted| "one")).operation("pay");
    let handler = async |_: Counted, mut tx: Tx| effect(&mut tx, "paid").await.unwrap().to_string();
    let count = Extractions::default();
    let app = Router::new().route("/", post(handler).route_layer(layer));
    let service = serve(app.layer(axum::Extension(count.clone()))).await;
    assert_eq!(service.post("/").key("k").send().await.status, 200);
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
    assert!(service.post("/").key("k").send().await.is_replay());
    assert_eq!(count.0.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_missing_extension_is_a_500_whose_log_line_names_the_type() {
    let logs = Logs::capture();
    let db = database().await;
    let layer = layer_of(&db, Tenant::extension(|user: &User| user.account.clone())).operation("pay");
    let service = serve_behind(layer, pay).await;
    let answer = paid(&service, "alice").send().await;
    answer.is_rejected(500, "extension-missing");
    assert_eq!(answer.json()["retry"], "same-key");
    assert!(!answer.text().contains("User"), "{answer:?}");
    let lines = logs.lines_with("auth::User");
    assert_eq!(lines.len(), 1, "{}", logs.text());
    assert!(lines[0].contains("ERROR") && lines[0].contains("outside of the idempotency layer"), "{lines:?}");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
}

#[tokio::test]
async fn nobody_is_a_403_and_nothing_runs() {
    let db = database().await;
    async fn nobody(mut request: Request, next: Next) -> Response {
        let account = request.headers().get("x-account").map(|value| value.to_str().unwrap().to_owned());
        request.extensions_mut().insert(User { account });
        next.run(request).await
    }
    let layer = layer_of(&db, Tenant::extension(|user: &User| user.account.clone())).operation("pay");
    let service = serve(Router::new().route("/", post(pay).route_layer(layer)).layer(from_fn(nobody))).await;
    let none = service.post("/").key("k").send().await;
    none.is_rejected(403, "tenant-missing");
    assert_eq!(none.json()["retry"], "never");
    service.post("/").key("k").header("x-account", "").send().await.is_rejected(403, "tenant-missing");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    assert_eq!(service.post("/").key("k").header("x-account", "a").send().await.status, 201);
}

#[tokio::test]
async fn a_trusted_header_must_be_there_once_and_readable() {
    let db = database().await;
    let tenant = Tenant::trusted_header(HeaderName::from_static("x-account"));
    let layer = layer_of(&db, tenant).operation("pay");
    let service = serve_behind(layer, pay).await;
    let call = || service.post("/").key("k");
    call().send().await.is_rejected(403, "tenant-missing");
    call().header("x-account", "").send().await.is_rejected(403, "tenant-missing");
    let twice = call().header("x-account", "a").header("x-account", "b");
    twice.send().await.is_rejected(403, "tenant-missing");
    let same = call().header("x-account", "a").header("x-account", "a");
    same.send().await.is_rejected(403, "tenant-missing");
    let unreadable = axum::http::HeaderValue::from_bytes(b"\xff").unwrap();
    call().header("x-account", unreadable).send().await.is_rejected(403, "tenant-missing");
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    assert_eq!(call().header("x-account", "a").send().await.status, 201);
    assert_eq!(tenants(&db).await, ["a"]);
}

#[tokio::test]
async fn numbers_and_uuids_and_options_of_them_name_a_tenant() {
    let db = database().await;
    let id = Uuid::from_u128(7);
    let values: [(Tenant, &str); 7] = [
        (Tenant::from_fn(|_| 42_i32), "42"),
        (Tenant::from_fn(|_| i64::MIN), "-9223372036854775808"),
        (Tenant::from_fn(|_| u64::MAX), "18446744073709551615"),
        (Tenant::from_fn(move |_| id), "00000000-0000-0000-0000-000000000007"),
        (Tenant::from_fn(move |_| Some(id.to_string())), "00000000-0000-0000-0000-000000000007"),
        (Tenant::from_fn(|_| Some(Some(3_u16))), "3"),
        (Tenant::single(), ""),
    ];
    let mut expected: Vec<_> = values.iter().map(|(_, name)| *name).collect();
    expected.sort_unstable();
    let mut app = Router::new();
    for (at, (tenant, _)) in values.into_iter().enumerate() {
        let layer = layer_of(&db, tenant).operation(format!("pay {at}"));
        app = app.route(&format!("/{at}"), post(pay).route_layer(layer));
    }
    let service = serve(app).await;
    for at in 0..expected.len() {
        assert_eq!(service.post(&format!("/{at}")).key("k").send().await.status, 201);
    }
    assert_eq!(tenants(&db).await, expected);
}

#[tokio::test]
async fn a_tenant_that_cannot_be_stored_is_a_500_and_is_not_echoed() {
    let db = database().await;
    let tenant = Tenant::from_fn(|parts: &Parts| parts.uri.path().trim_start_matches('/').to_owned());
    let layer = layer_of(&db, tenant).operation("pay");
    let service = serve(Router::new().route("/{*tenant}", post(pay).route_layer(layer))).await;
    let fits = "t".repeat(255);
    assert_eq!(service.post(&format!("/{fits}")).key("k").send().await.status, 201);
    let long = service.post(&format!("/{fits}t")).key("k").send().await;
    long.is_rejected(500, "extension-missing");
    assert!(!long.text().contains("ttt"), "{long:?}");
    assert_eq!(records(&db).await, 1);
}

#[tokio::test]
async fn a_handlers_401_is_not_recorded_and_the_refreshed_tokens_retry_runs() {
    let db = database().await;
    // The tenant comes from a gateway; the handler itself looks at the token.
    let layer = layer_of(&db, Tenant::single()).operation("pay");
    let handler = async |headers: HeaderMap, mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        if account(&headers).is_none() { unauthorized() } else { id.to_string().into_response() }
    };
    let service = serve_behind(layer, handler).await;
    let expired = paid(&service, "expired").send().await;
    assert_eq!((expired.status.as_u16(), expired.text()), (401, "who are you?"));
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    let refreshed = paid(&service, "alice").send().await;
    assert_eq!((refreshed.status.as_u16(), refreshed.is_replay()), (200, false));
    assert_eq!(states(&db).await, ["completed"]);
    assert_eq!(effects(&db, "paid").await, 1);
}
