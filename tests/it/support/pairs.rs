//! Two requests with one key: the same, or not?

use axum::Router;
use axum::routing::post;
use devpg::TestDb;
use tower_idempotency::{Fingerprint, Tx};

use super::{Answer, Gate, Service, database, layer, paid, serve};

/// One request of a pair.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(content_type: &str, body: impl AsRef<[u8]>) -> Self {
        Self::untyped(body).with("content-type", content_type)
    }

    pub(crate) fn json(body: impl AsRef<[u8]>) -> Self {
        Self::new("application/json", body)
    }

    pub(crate) fn untyped(body: impl AsRef<[u8]>) -> Self {
        Self { method: "POST", path: "/".to_owned(), headers: Vec::new(), body: body.as_ref().to_vec() }
    }

    pub(crate) fn at(mut self, method: &'static str, path: &str) -> Self {
        self.method = method;
        self.path = path.to_owned();
        self
    }

    /// With another content type.
    pub(crate) fn retyped(mut self, content_type: &str) -> Self {
        self.headers.retain(|(name, _)| *name != "content-type");
        self.with("content-type", content_type)
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// A service that takes anything, whose layer has one operation for all its routes.
pub(crate) struct Pairs {
    service: Service,
    gate: Gate,
    keys: usize,
    _db: TestDb,
}

impl Pairs {
    pub(crate) async fn of(fingerprint: Fingerprint) -> Self {
        let db = database().await;
        let gate = Gate::open();
        let counted = gate.clone();
        let pay = move |mut tx: Tx| {
            let gate = counted.clone();
            async move {
                gate.pass().await;
                paid(&mut tx).await
            }
        };
        let router = Router::new()
            .route("/", post(pay.clone()).put(pay.clone()).patch(pay.clone()))
            .route("/{id}", post(pay.clone()))
            .route("/{id}/{part}", post(pay))
            .route_layer(layer(&db).fingerprint(fingerprint));
        Self { service: serve(router).await, gate, keys: 0, _db: db }
    }

    /// Asserts that each is answered with the other's response, whichever comes first.
    pub(crate) async fn same(&mut self, one: Sent, other: Sent) {
        for (first, second) in [(&one, &other), (&other, &one)] {
            let (before, after) = self.pair(first, second).await;
            assert!(after.is_replay(), "taken for two: {first:?} {second:?}: {after:?}");
            after.replays(&before);
        }
    }

    /// Asserts that neither is answered with the other's response: whichever comes second is
    /// refused, runs nothing, and the first still has its response.
    pub(crate) async fn different(&mut self, one: Sent, other: Sent) {
        for (first, second) in [(&one, &other), (&other, &one)] {
            let (before, after) = self.pair(first, second).await;
            assert_eq!(after.status, 422, "taken for one: {first:?} {second:?}: {after:?}");
            after.is_rejected(422, "key-reused");
            self.send(first).await.replays(&before);
        }
    }

    /// The answers to two requests with a new key, of which at most the first is executed.
    async fn pair(&mut self, first: &Sent, second: &Sent) -> (Answer, Answer) {
        self.keys += 1;
        let before = self.send(first).await;
        assert_eq!(before.status, 201, "{first:?}: {before:?}");
        let after = self.send(second).await;
        assert_eq!(self.gate.runs(), self.keys, "executed twice: {first:?} {second:?}");
        (before, after)
    }

    async fn send(&self, sent: &Sent) -> Answer {
        let mut call = self.service.call(sent.method, &sent.path).key(&format!("k{}", self.keys));
        for (name, value) in &sent.headers {
            call = call.header(name, value);
        }
        call.body(sent.body.clone()).send().await
    }
}
