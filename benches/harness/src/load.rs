//! HTTP clients that each send one request after the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Mutex};
use tokio::task::JoinSet;

use crate::rounds::{Round, Side};

/// Connections that are kept open from one round to the next.
pub struct Clients {
    connections: Vec<Connection>,
}

pub(crate) type Connection = SendRequest<Full<Bytes>>;

impl Clients {
    pub async fn connect(address: SocketAddr, count: usize) -> Self {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(connect(address).await);
        }
        Self { connections }
    }

    /// These clients as a side: see [`run`](Self::run).
    pub fn side<F>(self, status: StatusCode, make: F) -> Side<'static>
    where
        F: Fn(usize) -> Request<Full<Bytes>> + Send + Sync + 'static,
    {
        let clients = Arc::new(Mutex::new(self));
        let make = Arc::new(make);
        Box::new(move |time| {
            let (clients, make) = (Arc::clone(&clients), Arc::clone(&make));
            Box::pin(async move {
                let mut clients = clients.lock().await;
                clients.run(time, status, move |number| make(number)).await
            })
        })
    }

    /// The first client sends one request.
    ///
    /// # Panics
    ///
    /// If the response has another status.
    pub async fn once(&mut self, request: Request<Full<Bytes>>, status: StatusCode) -> Bytes {
        send(&mut self.connections[0], request, status).await
    }

    /// Each client sends one request, all at once. The function gets the client's number.
    ///
    /// # Panics
    ///
    /// If a response has another status.
    pub async fn each<F>(&mut self, status: StatusCode, make: F)
    where
        F: Fn(usize) -> Request<Full<Bytes>>,
    {
        let connections = self.connections.iter_mut().enumerate();
        join_all(connections.map(|(number, connection)| send(connection, make(number), status))).await;
    }

    /// Each client sends the same request, all at the same time. How they were answered, and when the
    /// last one was.
    pub async fn at_once(&mut self, request: &Request<Full<Bytes>>) -> (Vec<StatusCode>, Duration) {
        let start = Arc::new(Barrier::new(self.connections.len() + 1));
        let mut tasks = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            let (start, request) = (Arc::clone(&start), request.clone());
            tasks.spawn(async move {
                start.wait().await;
                let (status, _) = exchange(&mut connection, request).await;
                (connection, status)
            });
        }
        start.wait().await;
        let began = Instant::now();
        let mut statuses = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (connection, status) = done.expect("a client");
            self.connections.push(connection);
            statuses.push(status);
        }
        (statuses, began.elapsed())
    }

    /// Each client sends what the function makes, until the time is over. The function gets the
    /// client's number.
    ///
    /// # Panics
    ///
    /// If a response has another status: a rate of errors is not worth knowing.
    pub async fn run<F>(&mut self, time: Duration, status: StatusCode, make: F) -> Round
    where
        F: Fn(usize) -> Request<Full<Bytes>> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let mut tasks = JoinSet::new();
        let began = Instant::now();
        for (number, mut connection) in self.connections.drain(..).enumerate() {
            let make = Arc::clone(&make);
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while began.elapsed() < time {
                    let request = make(number);
                    let sent = Instant::now();
                    send(&mut connection, request, status).await;
                    latencies.push(sent.elapsed().as_secs_f64() * 1e6);
                }
                (connection, latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (connection, mut own) = done.expect("a client");
            self.connections.push(connection);
            latencies.append(&mut own);
        }
        Round::new(began.elapsed(), latencies)
    }
}

pub(crate) async fn connect(address: SocketAddr) -> Connection {
    let stream = TcpStream::connect(address).await.expect("the bench's own server");
    stream.set_nodelay(true).expect("a socket option");
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.expect("HTTP/1.1");
    tokio::spawn(connection);
    sender
}

pub(crate) async fn send(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
    status: StatusCode,
) -> Bytes {
    let (got, body) = exchange(connection, request).await;
    assert_eq!(got, status, "{}", String::from_utf8_lossy(&body));
    body
}

async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (StatusCode, Bytes) {
    connection.ready().await.expect("an open connection");
    let response = connection.send_request(request).await.expect("a response");
    let status = response.status();
    (status, response.into_body().collect().await.expect("a body").to_bytes())
}

/// A POST of JSON, with a key or without one.
pub fn post(path: &str, key: Option<&str>, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut request = Request::post(path).header(HOST, "localhost").header(CONTENT_TYPE, "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Full::new(body.into())).expect("a request")
}
