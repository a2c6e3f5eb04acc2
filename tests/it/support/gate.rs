//! A handler that stops where a test wants it to.

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use tokio::sync::watch;
use tower_idempotency::{IdempotencyLayer, Tx};

use super::effect;

/// Counts the executions of a handler, and holds each until the test lets it go on.
#[derive(Clone)]
pub(crate) struct Gate {
    runs: watch::Sender<usize>,
    open: watch::Sender<usize>,
}

impl Gate {
    pub(crate) fn shut() -> Self {
        Self { runs: watch::Sender::new(0), open: watch::Sender::new(0) }
    }

    /// Only counts.
    pub(crate) fn open() -> Self {
        let gate = Self::shut();
        gate.let_pass(usize::MAX);
        gate
    }

    /// Called by a handler: its execution's number, when it may go on.
    pub(crate) async fn pass(&self) -> usize {
        let mut run = 0;
        self.runs.send_modify(|runs| {
            *runs += 1;
            run = *runs;
        });
        self.open.subscribe().wait_for(|open| *open >= run).await.unwrap();
        run
    }

    /// Waits until this many executions have begun.
    pub(crate) async fn reached(&self, runs: usize) {
        self.runs.subscribe().wait_for(|now| *now >= runs).await.unwrap();
    }

    /// Lets the first so many executions go on.
    pub(crate) fn let_pass(&self, runs: usize) {
        self.open.send_replace(runs);
    }

    /// How many executions have begun.
    pub(crate) fn runs(&self) -> usize {
        *self.runs.borrow()
    }
}

/// A payment at `/` that passes the gate and then has one effect, `paid`.
pub(crate) fn payment(gate: &Gate, layer: IdempotencyLayer) -> Router {
    let gate = gate.clone();
    let pay = move |mut tx: Tx| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            paid(&mut tx).await
        }
    };
    Router::new().route("/", post(pay).route_layer(layer))
}

/// One effect, `paid`, and the response that tells its number.
pub(crate) async fn paid(tx: &mut Tx) -> impl IntoResponse + use<> {
    let id = effect(tx, "paid").await.unwrap();
    (StatusCode::CREATED, [("location", format!("/payments/{id}"))], format!("{{\"id\":{id}}}"))
}
