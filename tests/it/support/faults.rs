//! Every way to be refused by the layer, on one service.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::map_request;
use axum::routing::post;
use devpg::TestDb;
use futures_util::stream;
use sqlx::AssertSqlSafe;
use tokio::sync::watch;
use tower_idempotency::{IdempotencyLayer, Resource, Settlement, Tenant, Tx};

use super::{Answer, Call, Gate, Outer, Service, database, layer_of, payment, serve};

/// The rejections that a request can be brought to, each with its status, its `retry` and its
/// `Retry-After`.
pub(crate) const FAULTS: [(&str, u16, &str, Option<&str>); 25] = [
    ("layer-twice", 500, "same-key", None),
    ("key-missing", 400, "new-key", None),
    ("key-malformed", 400, "new-key", None),
    ("key-refused", 400, "new-key", None),
    ("extension-missing", 500, "same-key", None),
    ("tenant-missing", 403, "never", None),
    ("body-too-large", 413, "never", None),
    ("body-incomplete", 400, "same-key", None),
    ("too-many-in-flight", 503, "same-key", Some("2")),
    ("database-unavailable", 503, "same-key", Some("2")),
    ("migration-missing", 500, "same-key", None),
    ("in-flight", 409, "same-key", Some("1")),
    ("key-reused", 422, "new-key", None),
    ("response-not-kept", 410, "never", None),
    ("response-expired", 410, "never", None),
    ("record-unreadable", 500, "never", None),
    ("execution-timeout", 503, "same-key", Some("2")),
    ("reruns-exhausted", 503, "same-key", Some("2")),
    ("transaction-unavailable", 500, "same-key", None),
    ("transaction-kept", 500, "same-key", None),
    ("transaction-aborted", 500, "same-key", None),
    ("transaction-ended", 500, "never", None),
    ("response-broken", 500, "same-key", None),
    ("response-unstorable", 500, "same-key", None),
    ("commit-refused", 500, "same-key", None),
];

/// What no answer but its owner's replay may contain.
pub(crate) const SECRETS: [&str; 3] = ["key-4711", "tenant-alice", "card-4242"];

pub(crate) struct Faults {
    pub(crate) outer: Outer,
    db: TestDb,
    service: Service,
    gate: Gate,
    free: watch::Sender<bool>,
    _unmigrated: TestDb,
}

impl Faults {
    /// `configure` is applied to the layer of every route.
    pub(crate) async fn with(configure: impl Fn(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let db = database().await;
        let unmigrated = devpg::empty_database().await;
        let closed = db.pool(1).await;
        closed.close().await;
        let gate = Gate::shut();
        let free = watch::Sender::new(false);
        let layer = |pool: &sqlx::PgPool| configure(layer_of(pool, tenant()).operation("op"));
        let usual = layer(&db).key_policy(|key| !key.contains("refused-form")).body_limit(1000);
        let one = layer(&db).max_in_flight(1).acquire_timeout(Duration::from_millis(50));
        let absent = configure(layer_of(&db, Tenant::extension(|account: &Account| account.0)));
        let secret = || async { (StatusCode::CREATED, [("location", "/payments/7")], SECRETS[2]) };
        let until = free.subscribe();
        let router = Router::new()
            .route("/pay", post(secret).route_layer(usual.clone()))
            .route("/not-kept", post(secret).route_layer(usual.clone().response_limit(0)))
            .route("/tombstone", post(secret).route_layer(usual.clone().tombstone(Duration::from_secs(3600))))
            .nest("/gated", payment(&gate, one))
            .route("/layers", post(secret).route_layer(usual.clone()).route_layer(usual.clone()))
            .route("/extension", post(secret).route_layer(absent))
            .route("/closed", post(secret).route_layer(layer(&closed)))
            .route("/unmigrated", post(secret).route_layer(layer(&unmigrated)))
            .route(
                "/never",
                post(std::future::pending::<()>).route_layer(usual.clone().execution_timeout(SHORT)),
            )
            .route(
                "/rerun",
                post(async || (Settlement::Rerun, "again")).route_layer(usual.clone().max_reruns(0)),
            )
            .route("/two", post(async |_: Tx, _: Tx| "ok").route_layer(usual.clone()))
            .route("/kept", post(async move |tx: Tx| keep(tx, until.clone())).route_layer(usual.clone()))
            .route(
                "/aborted",
                post(async |tx: Tx| run(tx, "insert into effect (name) values (repeat('x', 1000))").await)
                    .route_layer(usual.clone()),
            )
            .route("/ended", post(async |tx: Tx| run(tx, "commit").await).route_layer(usual.clone()))
            .route(
                "/refused",
                post(async |tx: Tx| run(tx, "insert into child (parent) values (4242)").await)
                    .route_layer(usual.clone()),
            )
            .route("/cut", post(secret).route_layer(usual.clone()).layer(map_request(cut)))
            .route("/unstorable", post(async || (Resource::new("", ""), "ok")).route_layer(usual.clone()))
            .route("/broken", post(broken).route_layer(usual));
        let outer = Outer::default();
        let service = serve(outer.around(router)).await;
        Self { outer, db, service, gate, free, _unmigrated: unmigrated }
    }

    /// Brings a request to be refused with this code, once.
    pub(crate) async fn provoke(&self, code: &str) -> Answer {
        let key = format!("{}-{code}", SECRETS[0]);
        let call = |path| self.service.post(path).header("x-tenant", SECRETS[1]).json("{}");
        let keyed = |path| call(path).key(&key);
        match code {
            "layer-twice" => keyed("/layers").send().await,
            "key-missing" => call("/pay").send().await,
            "key-malformed" => call("/pay").key(&format!("{key} b")).send().await,
            "key-refused" => call("/pay").key(&format!("{key}-refused-form")).send().await,
            "extension-missing" => keyed("/extension").send().await,
            "tenant-missing" => self.service.post("/pay").key(&key).send().await,
            "body-too-large" => keyed("/pay").body(vec![b' '; 1001]).send().await,
            "body-incomplete" => keyed("/cut").send().await,
            "too-many-in-flight" => {
                self.while_another_runs(call("/gated").key(&format!("{key}-other")), keyed("/gated")).await
            }
            "database-unavailable" => keyed("/closed").send().await,
            "migration-missing" => keyed("/unmigrated").send().await,
            "in-flight" => self.while_another_runs(keyed("/gated"), keyed("/gated")).await,
            "key-reused" => {
                self.after("", keyed("/pay"), keyed("/pay").header("content-encoding", "br")).await
            }
            "response-not-kept" => self.after("", keyed("/not-kept"), keyed("/not-kept")).await,
            "response-expired" => {
                let age = "expires_at = now() - interval '1 second'";
                self.after(age, keyed("/tombstone"), keyed("/tombstone")).await
            }
            "record-unreadable" => {
                let break_it = "state = 'pending', status = null, headers = null, body = null";
                self.after(break_it, keyed("/pay"), keyed("/pay")).await
            }
            "execution-timeout" => keyed("/never").send().await,
            "reruns-exhausted" => keyed("/rerun").send().await,
            "transaction-unavailable" => keyed("/two").send().await,
            "transaction-kept" => {
                let answer = keyed("/kept").send().await;
                self.free.send_replace(true);
                answer
            }
            "transaction-aborted" => keyed("/aborted").send().await,
            "transaction-ended" => keyed("/ended").send().await,
            "response-unstorable" => keyed("/unstorable").send().await,
            "response-broken" => keyed("/broken").send().await,
            "commit-refused" => keyed("/refused").send().await,
            other => panic!("no way to {other}"),
        }
    }

    async fn after(&self, change: &str, first: Call, second: Call) -> Answer {
        assert_eq!(first.send().await.status, 201);
        if !change.is_empty() {
            let changed = sqlx::query(AssertSqlSafe(format!(
                "update idempotency.record set {change} where created_at = (select max(created_at) from idempotency.record)"
            )));
            assert_eq!(changed.execute(&*self.db).await.unwrap().rows_affected(), 1);
        }
        second.send().await
    }

    async fn while_another_runs(&self, first: Call, second: Call) -> Answer {
        let run = self.gate.runs() + 1;
        let first = tokio::spawn(first.send());
        self.gate.reached(run).await;
        let answer = second.send().await;
        // What the middleware outside has seen last is to be this answer.
        let seen = self.outer.last();
        self.gate.let_pass(run);
        assert_eq!(first.await.unwrap().status, 201);
        self.outer.again(seen);
        answer
    }
}

#[derive(Clone)]
struct Account(i64);

fn tenant() -> Tenant {
    Tenant::from_fn(|parts: &Parts| {
        parts.headers.get("x-tenant").map(|value| value.to_str().unwrap().to_owned())
    })
}

fn keep(tx: Tx, mut until: watch::Receiver<bool>) {
    tokio::spawn(async move {
        let _ = until.wait_for(|free| *free).await;
        drop(tx);
    });
}

/// Answers with success whatever became of the statement.
async fn run(mut tx: Tx, statement: &'static str) -> &'static str {
    let _ = sqlx::raw_sql(statement).execute(&mut *tx).await;
    "ok"
}

/// A body that breaks off, with an error that nobody outside is to see.
fn broken_off() -> Body {
    let cut = io::Error::other("cut: insert into secret");
    Body::from_stream(stream::iter([Ok(Bytes::from_static(b"half")), Err(cut)]))
}

async fn broken() -> Body {
    broken_off()
}

async fn cut(request: Request) -> Request {
    request.map(|_| broken_off())
}

const SHORT: Duration = Duration::from_millis(50);
