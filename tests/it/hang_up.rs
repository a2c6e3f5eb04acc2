//! A client that hangs up neither cancels the handler nor loses its record.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use futures_util::FutureExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower_idempotency::{IdempotencyLayer, Tx};

use crate::support::{
    Client, Logs, OnDrop, Runs, Service, Turnstile, database, effect, effects, eventually, is_sound, layer,
    records, serve, states,
};

/// A service whose handler stops at a gate, and that tells when hyper has dropped the first request.
struct Interrupted {
    service: Service,
    gate: Turnstile,
    runs: Runs,
    dropped: oneshot::Receiver<()>,
}

impl Interrupted {
    /// The first run panics after the gate if it is told so.
    async fn new(layer: IdempotencyLayer, panics: bool) -> Self {
        let (gate, runs) = (Turnstile::default(), Runs::default());
        let (guard, dropped) = OnDrop::new();
        let guard = Arc::new(Mutex::new(Some(guard)));
        let (at, counted) = (gate.clone(), runs.clone());
        let handler = async move |mut tx: Tx| {
            effect(&mut tx, "paid").await.unwrap();
            let run = counted.next();
            at.pass().await;
            assert!(!panics || run > 1, "after the client has hung up");
            tracing::info!("the client may be gone");
            effect(&mut tx, "booked").await.unwrap();
            (StatusCode::CREATED, format!("run {run}"))
        };
        let watch = from_fn(move |request: Request, next: Next| {
            let guard = guard.lock().unwrap().take();
            async move {
                let response = next.run(request).await;
                drop(guard);
                response
            }
        });
        let router = Router::new().route("/", post(handler).route_layer(layer)).layer(watch);
        Self { service: serve(router).await, gate, runs, dropped }
    }

    /// Sends a request over HTTP/1.1, and closes the socket when the handler is at the gate.
    async fn hang_up(&mut self) {
        let mut socket = TcpStream::connect(self.service.address).await.unwrap();
        let request =
            b"POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        socket.write_all(request).await.unwrap();
        self.gate.arrival().await;
        drop(socket);
        (&mut self.dropped).await.unwrap();
    }

    /// Sends a request over HTTP/2, and resets its stream when the handler is at the gate.
    async fn reset(&mut self) {
        let mut connection = http2_connection(self.service.address).await;
        let request = Request::post("http://x/")
            .header("idempotency-key", "k")
            .header("content-type", "application/json")
            .body(Body::from("{}"))
            .unwrap();
        let response = tokio::spawn(connection.send_request(request));
        self.gate.arrival().await;
        response.abort();
        (&mut self.dropped).await.unwrap();
    }

    async fn the_retry_replays(&self, db: &devpg::TestDb) {
        self.service.post("/").key("k").json("{}").send().await.is_rejected(409, "in-flight");
        self.gate.open();
        eventually(std::panic::Location::caller(), async || match states(db).await.as_slice() {
            [state] if state == "completed" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        for client in [Client::new(), Client::http2()] {
            let retry = self.service.post("/").key("k").json("{}").via(&client).send().await;
            assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "run 1", true));
        }
        assert_eq!(self.runs.count(), 1);
        assert_eq!((effects(db, "paid").await, effects(db, "booked").await), (1, 1));
        is_sound(db, db).await;
    }
}

async fn http2_connection(address: SocketAddr) -> http2::SendRequest<Body> {
    let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn a_client_that_hangs_up_finds_the_response_recorded() {
    let db = database().await;
    let mut interrupted = Interrupted::new(layer(&db), false).await;
    interrupted.hang_up().await;
    interrupted.the_retry_replays(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_its_stream_finds_the_response_recorded() {
    let db = database().await;
    let mut interrupted = Interrupted::new(layer(&db), false).await;
    interrupted.reset().await;
    interrupted.the_retry_replays(&db).await;
}

#[tokio::test]
async fn a_panic_after_the_client_has_hung_up_frees_the_key() {
    let db = database().await;
    let layer = layer(&db);
    let mut interrupted = Interrupted::new(layer.clone(), true).await;
    interrupted.hang_up().await;
    interrupted.gate.open();
    layer.drain().await;
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    interrupted.gate.open();
    let retry = interrupted.service.post("/").key("k").json("{}").send().await;
    assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "run 2", false));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn draining_waits_for_an_execution_whose_client_has_hung_up() {
    let db = database().await;
    let layer = layer(&db);
    layer.drain().await;
    let mut interrupted = Interrupted::new(layer.clone().operation("a clone's"), false).await;
    interrupted.hang_up().await;
    assert!(layer.drain().now_or_never().is_none(), "it is still running");
    interrupted.gate.open();
    layer.drain().await;
    // Committed, not only answered.
    assert_eq!((states(&db).await.len(), effects(&db, "booked").await), (1, 1));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn an_execution_whose_client_has_hung_up_is_bounded_in_time() {
    let db = database().await;
    let layer = layer(&db).execution_timeout(std::time::Duration::from_millis(100));
    let mut interrupted = Interrupted::new(layer.clone(), false).await;
    interrupted.hang_up().await;
    layer.drain().await;
    assert_eq!((records(&db).await, effects(&db, "paid").await), (0, 0));
    interrupted.gate.open();
    let retry = interrupted.service.post("/").key("k").json("{}").send().await;
    assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "run 2", false));
    is_sound(&db, &db).await;
}

#[tokio::test]
async fn an_execution_whose_client_has_hung_up_keeps_its_span() {
    let db = database().await;
    let log = Logs::capture();
    let layer = layer(&db);
    let mut interrupted = Interrupted::new(layer.clone(), false).await;
    interrupted.hang_up().await;
    interrupted.gate.open();
    layer.drain().await;
    log.contain("operation=\"test\"}: it::hang_up: the client may be gone");
}
