//! What a storm of duplicates of one key costs everybody else.
//!
//! Sixteen clients pay, each time with a new key, while 2,000 duplicates of one hot key arrive in a
//! second, whether or not those before are answered. Held against two other sides:
//!
//! - **calm**: the same clients, and no storm.
//! - **plain**: the same number of requests of the same size arrive, at a route without the layer that
//!   gives an answer of the same size at the same moment. Clients and service share this machine, and
//!   2,000 requests over HTTP take a good part of it, whoever answers them; against this side the
//!   ratio shows what duplicates cost the service and its database. The aims are for this one.
//!
//! The scenes are what a duplicate can meet: its key is being executed by this process, or by another
//! one (a second layer with a pool of its own, in which nothing else goes on; the storm and the
//! clients are at the first), and it is answered with 409 or waits; or its key is settled, and it is a
//! replay. Who waits waits for a quarter of a second at most, as then the key is settled and the next
//! one is hot, so that what happens when the waiters are woken counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Json, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devpg::Server;
use harness::bank::{self, NewPayment};
use harness::{Aim, Clients, Plan, Report, Round, Side, Steady, interleaved, pool};
use http_body_util::Full;
use sqlx::PgPool;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::task::JoinHandle;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx, migrate};
use uuid::Uuid;

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let mut report = Report::new("storm", "New keys beside 2,000 duplicates of one key a second", plan);
    let server = harness::durable(&[]).await;
    let setup = pool(&server, "postgres", 20).await;
    report.server(&setup).await;
    report.setting("pool", "20 connections for each process, sqlx's defaults");
    report.setting(
        "clients",
        "16 with new keys, and 2,000 requests a second on as many connections as it takes",
    );
    migrate(&setup).await.expect("migrations");
    bank::open(&setup).await;
    for scene in [
        Scene { name: "409, executing here", moment: Moment::InFlight, elsewhere: false },
        Scene { name: "409, executing elsewhere", moment: Moment::InFlight, elsewhere: true },
        Scene { name: "waiting, executing here", moment: Moment::Waiting, elsewhere: false },
        Scene { name: "waiting, executing elsewhere", moment: Moment::Waiting, elsewhere: true },
        Scene { name: "replays", moment: Moment::Settled, elsewhere: false },
    ] {
        compare(&mut report, plan, &server, scene).await;
    }
    report.finish();
}

#[derive(Clone, Copy)]
struct Scene {
    name: &'static str,
    moment: Moment,
    /// Another process executes the hot key.
    elsewhere: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Moment {
    InFlight,
    Waiting,
    Settled,
}

async fn compare(report: &mut Report, plan: Plan, server: &Server, scene: Scene) {
    let gate = Arc::new(Gate::default());
    let here = harness::serve(app(pool(server, "postgres", 20).await, Arc::clone(&gate))).await;
    let first = if scene.elsewhere {
        harness::serve(app(pool(server, "postgres", 20).await, Arc::clone(&gate))).await
    } else {
        here
    };
    let stage = Arc::new(Stage {
        scene,
        gate,
        first: AsyncMutex::new(Clients::connect(first, 1).await),
        others: AsyncMutex::new(Clients::connect(here, CLIENTS).await),
        storm: Steady::to(here, DUPLICATES),
        arrived: Mutex::default(),
    });
    let sides = [stage.side(Some(Load::Storm)), stage.side(Some(Load::Plain)), stage.side(None)];
    let [storm, plain, calm] = interleaved(plan, server, sides).await;

    let Scene { name, .. } = scene;
    let mut compare = |what: &str, unit, value: fn(&Round) -> f64, base: (&str, &[Round]), aim| {
        let values = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
        let (storm, bases) = (values(&storm), values(base.1));
        report.ratio(format!("{name}: {what}"), unit, ("storm", &storm), (base.0, &bases), aim);
    };
    compare("throughput", "requests/s", Round::rate, ("plain", &plain), Aim::AtLeast(0.9));
    compare("p99", "µs", Round::p99, ("plain", &plain), Aim::AtMost(1.1));
    compare("throughput to calm", "requests/s", Round::rate, ("calm", &calm), Aim::None);
    compare("p99 to calm", "µs", Round::p99, ("calm", &calm), Aim::None);

    let arrived = stage.arrived.lock().unwrap_or_else(PoisonError::into_inner);
    // The first was the warm-up.
    let storms = &arrived[1..];
    let rate = storms.iter().map(|storm| storm.latencies.len() as f64).sum::<f64>()
        / (storms.len() as f64 * plan.time.as_secs_f64());
    report.fact(format!("{name}: duplicates that arrived"), "/s", rate, Aim::None);
    let late = harness::Spread::of(&storms.iter().map(Round::p99).collect::<Vec<_>>());
    report.fact(format!("{name}: p99 of a duplicate"), "µs", late.median, Aim::None);
    let each = storm.iter().zip(&plain).zip(storms).map(|((storm, plain), duplicates)| {
        let others = plain.server_cpu() * storm.latencies.len() as f64;
        (storm.server_cpu() * storm.latencies.len() as f64 - others) / duplicates.latencies.len() as f64
    });
    let each = harness::Spread::of(&each.collect::<Vec<_>>());
    report.fact(format!("{name}: processor, database, a duplicate"), "µs", each.median, Aim::None);
}

/// All that a scene needs, from one round to the next.
struct Stage {
    scene: Scene,
    gate: Arc<Gate>,
    first: AsyncMutex<Clients>,
    others: AsyncMutex<Clients>,
    storm: Steady,
    arrived: Mutex<Vec<Round>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Load {
    Storm,
    Plain,
}

impl Stage {
    fn side(self: &Arc<Self>, load: Option<Load>) -> Side<'static> {
        let stage = Arc::clone(self);
        Box::new(move |time| {
            let stage = Arc::clone(&stage);
            Box::pin(async move {
                let mut others = stage.others.lock().await;
                match load {
                    None => others.run(time, StatusCode::CREATED, new_payment).await,
                    Some(load) => stage.run(time, load, &mut others).await,
                }
            })
        })
    }

    async fn run(self: &Arc<Self>, time: Duration, load: Load, others: &mut Clients) -> Round {
        let (path, status) = match (self.scene.moment, load) {
            (Moment::InFlight, Load::Storm) => ("/held", StatusCode::CONFLICT),
            (Moment::InFlight, Load::Plain) => ("/plain/refused", StatusCode::CONFLICT),
            (Moment::Waiting, Load::Storm) => ("/waited", StatusCode::CREATED),
            (Moment::Waiting, Load::Plain) => ("/plain/waited", StatusCode::CREATED),
            (Moment::Settled, Load::Storm) => ("/held", StatusCode::CREATED),
            (Moment::Settled, Load::Plain) => ("/plain/paid", StatusCode::CREATED),
        };
        let first = Hot::new(path);
        let hot = watch::Sender::new(first.clone());
        let mut execution = None;
        if load == Load::Storm {
            execution = Some(self.execute(first).await);
        }
        if self.scene.moment == Moment::Settled {
            self.settle(execution.take()).await;
        }
        let is_over = AtomicBool::new(false);
        let storm = async {
            let storm = self.storm.run(time, status, || hot.borrow().request()).await;
            is_over.store(true, Ordering::Relaxed);
            storm
        };
        let settling = async {
            // Until all are answered: those that wait need one more settling.
            while self.scene.moment == Moment::Waiting && !is_over.load(Ordering::Relaxed) {
                tokio::time::sleep(EXECUTION).await;
                self.settle(execution.take()).await;
                if load == Load::Storm && !is_over.load(Ordering::Relaxed) {
                    let next = Hot::new(path);
                    execution = Some(self.execute(next.clone()).await);
                    hot.send_replace(next);
                }
            }
            execution
        };
        let others = others.run(time, StatusCode::CREATED, new_payment);
        let (storm, others, execution) = tokio::join!(storm, others, settling);
        self.settle(execution).await;
        if load == Load::Storm {
            self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(storm);
        }
        others
    }

    /// Sends the hot key for the first time, and comes back when its handler runs.
    async fn execute(self: &Arc<Self>, hot: Hot) -> JoinHandle<()> {
        let stage = Arc::clone(self);
        let execution = tokio::spawn(async move {
            stage.first.lock().await.once(hot.request(), StatusCode::CREATED).await;
        });
        self.gate.entered.notified().await;
        execution
    }

    async fn settle(&self, execution: Option<JoinHandle<()>>) {
        self.gate.opened.send_replace(());
        if let Some(execution) = execution {
            execution.await.expect("an answer");
        }
    }
}

#[derive(Clone)]
struct Hot {
    path: &'static str,
    key: String,
    body: Bytes,
}

impl Hot {
    fn new(path: &'static str) -> Self {
        Self { path, key: Uuid::new_v4().to_string(), body: NewPayment::random().to_json().into() }
    }

    fn request(&self) -> Request<Full<Bytes>> {
        harness::post(self.path, Some(&self.key), self.body.clone())
    }
}

/// Where a handler of the hot key waits.
#[derive(Default)]
struct Gate {
    entered: Notify,
    opened: watch::Sender<()>,
}

fn app(pool: PgPool, gate: Arc<Gate>) -> Router {
    async fn create(mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        bank::answer(bank::pay(&mut tx, &new).await)
    }
    async fn held(State(gate): State<Arc<Gate>>, mut tx: Tx, Json(new): Json<NewPayment>) -> Response {
        let mut opened = gate.opened.subscribe();
        gate.entered.notify_one();
        opened.changed().await.expect("the gate");
        bank::answer(bank::pay(&mut tx, &new).await)
    }
    async fn refused(_body: Bytes) -> Response {
        let headers =
            [(CONTENT_TYPE, "application/problem+json"), (RETRY_AFTER, "1"), (CACHE_CONTROL, "no-store")];
        (StatusCode::CONFLICT, headers, REFUSAL).into_response()
    }
    async fn paid(_body: Bytes) -> Response {
        (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], PAYMENT).into_response()
    }
    async fn waited(State(gate): State<Arc<Gate>>, body: Bytes) -> Response {
        gate.opened.subscribe().changed().await.expect("the gate");
        paid(body).await
    }
    let layer = IdempotencyLayer::new(pool, Tenant::single()).operation("payments.create");
    // Longer than any queue here: an error would end the bench.
    let layer = layer.acquire_timeout(Duration::from_secs(30));
    Router::new()
        .route("/waited", post(held).route_layer(layer.clone().wait(Duration::from_secs(30))))
        .route("/held", post(held).route_layer(layer.clone()))
        .route("/payments", post(create).route_layer(layer))
        .route("/plain/refused", post(refused))
        .route("/plain/waited", post(waited))
        .route("/plain/paid", post(paid))
        .with_state(gate)
}

fn new_payment(_client: usize) -> Request<Full<Bytes>> {
    let key = Uuid::new_v4().to_string();
    harness::post("/payments", Some(&key), NewPayment::random().to_json())
}

const CLIENTS: usize = 16;
const DUPLICATES: f64 = 2_000.0;
const EXECUTION: Duration = Duration::from_millis(250);

/// The layer's.
const REFUSAL: &str = r#"{"detail":"An earlier request with this key is being executed. Wait, then send the request again with the same key to get its response.","retry":"same-key","status":409,"title":"This operation is in progress","type":"urn:tower-idempotency:in-flight"}"#;
const PAYMENT: &str = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","account":512,"amount":1250,"balance":999998750,"reference":"invoice 4a1c1d6c-51e5-4b0f-b3a5-b1dcd29a35c5"}"#;
