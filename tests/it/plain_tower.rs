//! Any tower service, not only axum's router.

use std::cell::Cell;
use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{Route, post};
use futures_util::future::{Ready, ready};
use http_body_util::{BodyExt as _, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_idempotency::{
    Error, Fingerprint, Idempotency, IdempotencyLayer, IdempotencyService, Rejection, ResponseFuture,
    Retention, Settlement, Sweeper, Tenant, Tx, TxHandle,
};

use crate::support::{database, effect, effects, layer, no_transaction_is_left, records, serve, states};

fn request(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("http://example.com/pay?x=1").header("idempotency-key", "k").body(Full::from(body)).unwrap()
}

#[tokio::test]
async fn a_service_function_with_foreign_bodies_and_without_a_router() {
    let db = database().await;
    let service = ServiceBuilder::new().layer(layer(&db)).service_fn(|request: Request<Body>| async move {
        let handle = request.extensions().get::<TxHandle>().unwrap().clone();
        let idempotency = request.extensions().get::<Idempotency>().unwrap().clone();
        let mut tx = handle.lend().await.unwrap();
        let id = effect(&mut tx, idempotency.key().as_str()).await.unwrap();
        drop(tx);
        let sent = request.into_body().collect().await.unwrap().to_bytes();
        let answer = format!("{id} {}", String::from_utf8_lossy(&sent));
        Ok::<_, Infallible>(Response::builder().status(201).body(Full::<Bytes>::from(answer)).unwrap())
    });
    let mut answers = Vec::new();
    for _ in 0..2 {
        let answer = service.clone().oneshot(request("{}")).await.unwrap();
        let replayed = answer.headers().contains_key("idempotent-replayed");
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        answers.push((status, replayed, String::from_utf8(body.to_vec()).unwrap()));
    }
    assert_eq!(answers, [(201, false, "1 {}".to_owned()), (201, true, "1 {}".to_owned())]);
    let other = service.oneshot(request("[]")).await.unwrap();
    assert_eq!(other.status(), 422);
    assert_eq!(effects(&db, "k").await, 1);
}

#[derive(Debug, PartialEq)]
struct Burnt {
    toast: u32,
}

#[tokio::test]
async fn an_error_of_the_service_passes_unchanged_and_keeps_nothing() {
    let db = database().await;
    let service = ServiceBuilder::new().layer(layer(&db)).service_fn(async |request: Request<Body>| {
        let mut tx = request.extensions().get::<TxHandle>().unwrap().clone().lend().await.unwrap();
        effect(&mut tx, "paid").await.unwrap();
        let attempts = effect(&mut tx, "attempt").await.unwrap();
        // The identity of a table counts rolled back inserts, too.
        if attempts <= 2 { Err(Burnt { toast: 7 }) } else { Ok(StatusCode::CREATED) }
    });
    let error = service.clone().oneshot(request("{}")).await.unwrap_err();
    assert_eq!(error, Burnt { toast: 7 });
    // At once, not some time later: the client may come again.
    let open = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                where l.locktype = 'advisory' and d.datname = current_database()";
    assert_eq!(sqlx::query_scalar::<_, i64>(open).fetch_one(&*db).await.unwrap(), 0);
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    no_transaction_is_left(&db).await;
    assert_eq!(service.oneshot(request("{}")).await.unwrap().status(), 201);
    assert_eq!(states(&db).await, ["completed"]);
}

/// Must be asked whether it is ready before each call, by the very instance that is called; as a
/// concurrency limit must; and wants each request twice. Not `Sync`.
struct Strict {
    ready: Cell<bool>,
    fails: bool,
    calls: u32,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: Cell::new(false), fails: self.fails, calls: 0 }
    }
}

impl Service<Request<Body>> for Strict {
    type Response = axum::response::Response;
    type Error = Burnt;
    type Future = Ready<Result<Self::Response, Burnt>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Burnt>> {
        self.ready.set(true);
        Poll::Ready(if self.fails { Err(Burnt { toast: 1 }) } else { Ok(()) })
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(self.ready.replace(false), "called before it was ready");
        self.calls += 1;
        let settlement = if self.calls % 2 == 1 { Settlement::Rerun } else { Settlement::Complete };
        ready(Ok((StatusCode::CREATED, settlement, ()).into_response()))
    }
}

#[tokio::test]
async fn a_service_is_called_only_when_it_is_ready() {
    let db = database().await;
    let mut service = layer(&db).layer(Strict { ready: Cell::new(false), fails: false, calls: 0 });
    for _ in 0..2 {
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await.unwrap();
        let answer = ready.call(request("{}")).await.unwrap();
        assert_eq!(answer.status(), 201);
    }
    let unready = layer(&db).layer(Strict { ready: Cell::new(false), fails: true, calls: 0 });
    assert_eq!(unready.oneshot(request("{}")).await.unwrap_err(), Burnt { toast: 1 });
    assert_eq!(states(&db).await, ["completed"]);
}

#[tokio::test]
async fn it_stands_in_a_service_builder_on_a_router_and_on_a_nested_one() {
    let db = database().await;
    let pay = async |mut tx: Tx| {
        let id = effect(&mut tx, "paid").await.unwrap();
        (StatusCode::CREATED, id.to_string())
    };
    let stack = ServiceBuilder::new().map_request(|request: Request<Body>| request).layer(layer(&db));
    let built = Router::new().route("/built", post(pay)).layer(stack);
    let inner = Router::new().route("/inner", post(pay)).route_layer(layer(&db).operation("nested"));
    let service = serve(built.nest("/outer", inner)).await;
    for path in ["/built", "/outer/inner"] {
        let first = service.post(path).key("k").json("{}").send().await;
        assert_eq!(first.status, 201, "{path}");
        service.post(path).key("k").json("{}").send().await.replays(&first);
    }
    assert_eq!((records(&db).await, effects(&db, "paid").await), (2, 2));
}

const fn shared<T: Clone + Send + Sync + 'static>() {}
const fn sent<T: Send + 'static>() {}
const fn layered<L>()
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: Service<axum::extract::Request, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<axum::extract::Request>>::Response: axum::response::IntoResponse + 'static,
    <L::Service as Service<axum::extract::Request>>::Future: Send + 'static,
{
}

const _: () = {
    layered::<IdempotencyLayer>();
    shared::<IdempotencyLayer>();
    shared::<IdempotencyService<Route>>();
    shared::<Tenant>();
    shared::<Fingerprint>();
    shared::<Retention>();
    shared::<Rejection>();
    shared::<Idempotency>();
    shared::<TxHandle>();
    shared::<Sweeper>();
    sent::<Tx>();
    sent::<Error>();
    sent::<ResponseFuture<Infallible>>();
};
