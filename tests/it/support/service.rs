//! A service on a port of its own.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::response::IntoResponse;
use axum::routing::{Route, post};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::Layer;

use super::{Call, Client};

/// A running service. It stops when this is dropped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    task: JoinHandle<()>,
}

/// Serves a router over HTTP/1.1 and HTTP/2 on a free port of 127.0.0.1.
pub(crate) async fn serve(router: Router) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Service { address, client: Client::new(), task }
}

/// Serves one route, `POST /`, behind this layer.
pub(crate) async fn serve_behind<L, H, T>(layer: L, handler: H) -> Service
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: tower::Service<Request, Response: IntoResponse, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    H: Handler<T, ()>,
    T: 'static,
{
    serve(Router::new().route("/", post(handler).route_layer(layer))).await
}

impl Service {
    pub(crate) fn post(&self, path: &str) -> Call {
        self.call("POST", path)
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.call("GET", path)
    }

    pub(crate) fn call(&self, method: &str, path: &str) -> Call {
        Call::new(&self.client, self.address, method, path)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}
