//! How much memory a request in flight takes, and whether any is kept.
//!
//! The service is a process of its own, this program again, so that the clients' memory does not
//! count; for each figure of each round it is a new one, as an allocator seldom gives back what it has
//! had. What is counted is the resident memory of the service when 1,000 requests are in flight, less
//! that when their connections were open and nothing had been sent.
//!
//! - **executing**: each request has a key of its own, and its handler waits, inside of its transaction.
//!   All 1,000 have a connection to the database, which takes a pool and a `max_in_flight` of that size.
//!   Against the same handler that begins and commits a transaction itself. The pool's connections are
//!   open before, and not counted on either side.
//! - **waiting**: 1,000 duplicates wait, `.wait(..)`, for one that is executing. They hold no connection.
//!   Against a handler that has read the body and waits.
//!
//! Last, one service executes 200,000 keys, an hour's worth and more, and sees every eighth of them
//! twice: it must not be larger at the end than it was after a quarter.

use std::fs;
use std::future::ready;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::middleware::map_request;
use axum::routing::post;
use devpg::Server;
use futures_util::future::join_all;
use harness::{Aim, Clients, Plan, Report};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tower_idempotency::{IdempotencyLayer, Tenant, Tx, migrate};
use uuid::Uuid;

fn main() {
    match std::env::var(SERVICE) {
        Ok(kind) => harness::run(service(kind)),
        Err(_) => harness::run(bench()),
    }
}

async fn bench() {
    let plan = Plan::from_env();
    let (in_flight, keys) = if plan.is_trial { (20, 500) } else { (1_000, 200_000) };
    let mut report = Report::new("memory", "Memory for requests in flight", plan);
    let settings = Server::builder().setting("max_connections", in_flight + 100);
    let started = tokio::task::spawn_blocking(|| settings.start()).await;
    let server = started.expect("no panic").expect("a PostgreSQL server");
    let setup = PgPool::connect_with(server.options("postgres")).await.expect("the bench's own server");
    migrate(&setup).await.expect("migrations");
    report.server(&setup).await;
    report.setting("not durable", "no time is measured");
    setup.close().await;
    if resident(std::process::id()).is_none() {
        println!("This system does not say how much memory a process has; Linux does.");
        return;
    }

    // A large body is most of it, and is held once.
    for (name, length, aim) in [("1 KiB", 1 << 10, Aim::None), ("1 MiB", 1 << 20, Aim::AtMost(1.1))] {
        for (what, with, without) in [("executing", "executing", "bare"), ("waiting", "waiting", "plain")] {
            let mut sides = [Vec::new(), Vec::new()];
            for round in 0..plan.rounds.div_ceil(PROCESSES) {
                for turn in 0..2 {
                    let side = (round + turn) % 2;
                    let kind = [with, without][side];
                    sides[side].push(of_one(&server, kind, in_flight, length).await);
                }
            }
            let [with, without] = &sides;
            let name = format!("{what}, {name}: a request of {in_flight}");
            report.ratio(name, "bytes", ("layer", with), ("without", without), aim);
        }
    }
    growth(&mut report, &server, keys).await;
    report.finish();
}

/// Bytes that a request in flight takes.
async fn of_one(server: &Server, kind: &str, in_flight: usize, length: usize) -> f64 {
    let service = Service::start(server, kind, in_flight);
    let is_waiting = kind == "waiting";
    let duplicates = if is_waiting { in_flight + 1 } else { in_flight };
    let mut control = Clients::connect(service.address, 1).await;
    let mut clients = Clients::connect(service.address, duplicates).await;
    service.count(&mut control, "/seen").await;
    let before = service.steady().await;
    let one = Uuid::new_v4().to_string();
    let body = Bytes::from(format!("{{\"data\":\"{}\"}}", "x".repeat(length - r#"{"data":""}"#.len())));
    let request = |_client| {
        let key = if is_waiting { one.clone() } else { Uuid::new_v4().to_string() };
        harness::post("/work", Some(&key), body.clone())
    };
    let measured = async {
        let seen = (duplicates * length) as u64;
        let entered = if is_waiting { 1 } else { duplicates as u64 };
        until(async || {
            service.count(&mut control, "/seen").await == seen
                && service.count(&mut control, "/entered").await == entered
        })
        .await;
        let during = service.steady().await;
        control.once(harness::post("/open", None, ""), StatusCode::OK).await;
        during
    };
    let (during, ()) = tokio::join!(measured, clients.each(StatusCode::CREATED, request));
    (during - before) / duplicates as f64
}

/// Executes many keys, one after the other, and each client every eighth of its own once more.
async fn growth(report: &mut Report, server: &Server, keys: u64) {
    let service = Service::start(server, "answering", 20);
    let mut clients = Clients::connect(service.address, CLIENTS).await;
    let sent: Arc<[AtomicU64; CLIENTS]> = Arc::default();
    let total = |sent: &[AtomicU64]| sent.iter().map(|sent| sent.load(Ordering::Relaxed)).sum::<u64>();
    let mut sizes = Vec::new();
    for quarter in 1..=4 {
        while total(&*sent) < keys * 9 / 8 * quarter / 4 {
            let sent = Arc::clone(&sent);
            let request = move |client: usize| {
                let number = sent[client].fetch_add(1, Ordering::Relaxed);
                let key = number - number / 9 - u64::from(number % 9 == 8);
                let key = format!("01890a5d-ac96-774b-{client:04x}-{key:012x}");
                harness::post("/work", Some(&key), r#"{"amount":1250}"#)
            };
            clients.run(Duration::from_millis(250), StatusCode::CREATED, request).await;
        }
        sizes.push(service.steady().await);
    }
    report.fact("one service: requests", "", total(&*sent) as f64, Aim::None);
    report.fact("one service: resident after a quarter of them", "bytes", sizes[0], Aim::None);
    report.fact("one service: at the end, to after a quarter", "", sizes[3] / sizes[0], Aim::AtMost(1.05));
}

/// A process that serves until this value is dropped, or the bench is gone.
struct Service {
    process: Child,
    address: SocketAddr,
}

impl Service {
    fn start(server: &Server, kind: &str, connections: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .env(SERVICE, kind)
            .env(DATABASE, server.url("postgres"))
            .env(CONNECTIONS, connections.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut port = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut port).expect("a line");
        let port = port.trim().parse().expect("the port that the service says");
        Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) }
    }

    async fn count(&self, control: &mut Clients, path: &str) -> u64 {
        let count = control.once(harness::post(path, None, ""), StatusCode::OK).await;
        String::from_utf8_lossy(&count).parse().expect("a number")
    }

    /// Resident bytes, when they have been the same ten times in a row.
    async fn steady(&self) -> f64 {
        let mut last = 0.0;
        let mut same = 0;
        while same < 10 {
            tokio::time::sleep(LOOK).await;
            let now = resident(self.process.id()).expect("a process");
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        tokio::time::sleep(LOOK).await;
    }
}

/// Bytes of a process that are in memory.
fn resident(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// The process that is measured: says its port, and ends with its standard input.
async fn service(kind: String) {
    let variable = |name| std::env::var(name).expect("a variable that the bench sets");
    let connections: u32 = variable(CONNECTIONS).parse().expect("a number");
    let options = variable(DATABASE).parse().expect("a URL");
    let options =
        PgPoolOptions::new().max_connections(connections).acquire_timeout(A_WHILE).connect_with(options);
    let pool: PgPool = options.await.expect("the bench's own server");
    if matches!(&*kind, "executing" | "bare") {
        drop(join_all((0..connections).map(|_| pool.acquire())).await);
    }
    let address = harness::serve(app(&kind, pool)).await;
    println!("{}", address.port());
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await.expect("no panic").expect("the end of the input");
}

/// What is in flight, and what lets it end.
#[derive(Clone, Default)]
struct Gate {
    seen: Arc<AtomicU64>,
    entered: Arc<AtomicU64>,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn pass(&self) -> StatusCode {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.subscribe();
        open.wait_for(|is_open| *is_open).await.expect("the gate");
        StatusCode::CREATED
    }
}

fn app(kind: &str, pool: PgPool) -> Router {
    async fn executing(State(gate): State<Gate>, _tx: Tx, _body: Bytes) -> StatusCode {
        gate.pass().await
    }
    async fn plain(State(gate): State<Gate>, _body: Bytes) -> StatusCode {
        gate.pass().await
    }
    async fn answering(_tx: Tx, body: Bytes) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::CREATED;
        response
    }
    let bare = {
        let pool = pool.clone();
        async move |State(gate): State<Gate>, _body: Bytes| {
            let transaction = pool.begin().await.expect("a transaction");
            let status = gate.pass().await;
            transaction.commit().await.expect("a commit");
            status
        }
    };
    let gate = Gate::default();
    let seen = Arc::clone(&gate.seen);
    let places = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
    let layer = IdempotencyLayer::new(pool, Tenant::single()).operation("work").max_in_flight(places);
    let layer = layer.acquire_timeout(A_WHILE);
    let work = match kind {
        "executing" | "waiting" => post(executing).route_layer(layer.wait(A_WHILE)),
        "answering" => post(answering).route_layer(layer),
        "bare" => post(bare),
        "plain" => post(plain),
        _ => panic!("no such service: {kind}"),
    };
    // Outside of all: how much of the bodies has been read.
    let work = work.layer(map_request(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        let count = move |frame: Frame<Bytes>| {
            seen.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), Ordering::Relaxed);
            frame
        };
        ready(request.map(|body| Body::new(body.map_frame(count))))
    }));
    let count = |count: Arc<AtomicU64>| post(async move || count.load(Ordering::Relaxed).to_string());
    let open = gate.open.clone();
    Router::new()
        .route("/work", work)
        .route("/seen", count(Arc::clone(&gate.seen)))
        .route("/entered", count(Arc::clone(&gate.entered)))
        .route("/open", post(async move || _ = open.send_replace(true)))
        .with_state(gate)
}

const SERVICE: &str = "BENCH_MEMORY_SERVICE";
const DATABASE: &str = "BENCH_MEMORY_DATABASE";
const CONNECTIONS: &str = "BENCH_MEMORY_CONNECTIONS";

/// One process a side for so many rounds: memory varies less than time.
const PROCESSES: usize = 3;
const CLIENTS: usize = 16;
const LOOK: Duration = Duration::from_millis(20);

/// Less than the time after which an execution is ended.
const A_WHILE: Duration = Duration::from_secs(50);
