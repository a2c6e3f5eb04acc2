//! The layer beside other ways to the same end: `cargo bench -p peers`.
//!
//! Each does the same work on the same database, over HTTP: it locks an account, inserts a payment, and
//! changes the balance. Each has 20 connections for it.
//!
//! | | |
//! | --- | --- |
//! | `layer` | this layer |
//! | `layer, replay cache` | this layer with `.replay_cache(..)`, which is about replays, and takes part in nothing else |
//! | `book` | the design of "Zero To Production In Rust": insert, work and save in one transaction |
//! | `axum-idempotent, Postgres` | the crate with its sessions in Postgres, on 20 connections more |
//! | `axum-idempotent, memory` | the crate with its sessions in memory |
//! | `idempotent, memory` | the crate's claim around the payment; 0.3.0, as later ones ask for Rust 1.98 |
//! | `bare` | the plain handler, without any idempotency |
//!
//! They do not promise the same. Beside each figure stands how often the handler ran for one key, counted
//! by its payments; one is right. What is kept in memory is gone with the process and unknown to another
//! one, and what is kept beside the payment's transaction can be lost after it: neither happens here.
//! Only `layer` and `idempotent` compare the requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use harness::bank::{self, NewPayment};
use harness::{Aim, Clients, Plan, Report, Round, Side, interleaved};
use http_body_util::Full;
use peers::Sessions;
use sqlx::PgPool;
use tokio::sync::Mutex;
use tower_idempotency::migrate;
use uuid::Uuid;

fn main() {
    harness::run(bench());
}

async fn bench() {
    let plan = Plan::from_env();
    let mut report = Report::new("peers", "Peers: the same payment behind each", plan);
    let server = harness::durable(&[("max_connections", "250")]).await;
    let setup = harness::pool(&server, "postgres", 20).await;
    report.server(&setup).await;
    report.setting("pool", "20 connections for each, sqlx's defaults");
    migrate(&setup).await.expect("migrations");
    bank::open(&setup).await;

    let in_postgres =
        peers::in_postgres(harness::pool(&server, "postgres", 20).await, server.port(), server.password())
            .await;
    let peers = [
        Peer::serve("layer", peers::layer(harness::pool(&server, "postgres", 20).await), false).await,
        Peer::serve("book", peers::book(harness::pool(&server, "postgres", 20).await).await, false).await,
        Peer::serve("axum-idempotent, Postgres", in_postgres, true).await,
        Peer::serve(
            "axum-idempotent, memory",
            peers::in_memory(harness::pool(&server, "postgres", 20).await),
            true,
        )
        .await,
        Peer::serve(
            "idempotent, memory",
            peers::idempotent(harness::pool(&server, "postgres", 20).await),
            false,
        )
        .await,
        Peer::serve("bare", bank::bare(harness::pool(&server, "postgres", 20).await), false).await,
    ];
    let [layer, .., bare] = [0, 1, 2, 3, 4, 5];

    let rounds = interleaved(plan, &server, sides(&peers, Peer::new_keys).await).await;
    for (peer, side) in peers.iter().zip(&rounds).take(bare) {
        compare(&mut report, "new keys", (peer, side), (&peers[bare], &rounds[bare]));
    }

    let cached = peers::layer_with_cache(harness::pool(&server, "postgres", 20).await);
    let cached = Peer::serve("layer, replay cache", cached, false).await;
    let [a, b, c, d, e, f] = peers.each_ref().map(Arc::clone);
    let replaying = [a, cached, b, c, d, e, f];
    for peer in &replaying {
        peer.first_time().await;
    }
    let rounds = interleaved(plan, &server, sides(&replaying, Peer::replays).await).await;
    for (peer, side) in replaying.iter().zip(&rounds).take(bare + 1).skip(1) {
        compare(&mut report, "replays", (peer, side), (&replaying[layer], &rounds[layer]));
    }

    let rounds = interleaved(plan, &server, sides(&peers, Peer::duplicates).await).await;
    for (peer, side) in peers.iter().zip(&rounds).take(bare).skip(1) {
        compare(&mut report, "50 at once", (peer, side), (&peers[layer], &rounds[layer]));
    }

    for peer in &replaying {
        if peer.name != "bare" {
            let runs = runs(&setup, &format!("again {} ", peer.name)).await;
            let name = format!("replays, {}: runs of the handler for one key", peer.name);
            report.fact(name, "", runs, Aim::AtMost(1.0));
        }
    }
    for peer in &peers {
        let runs = runs(&setup, &format!("at once {} ", peer.name)).await;
        let statuses = peer.statuses.lock().await;
        let sum: usize = statuses.values().sum();
        let answers: Vec<_> = statuses
            .iter()
            .map(|(status, count)| {
                let each = *count as f64 * DUPLICATES as f64 / sum as f64;
                format!("{} × {each:.1}", status.as_u16())
            })
            .collect();
        let name = format!("50 at once, {}, answers {}: runs for one key", peer.name, answers.join(" and "));
        report.fact(name, "", runs, Aim::AtMost(1.0));
    }
    report.finish();
}

fn compare(report: &mut Report, what: &str, side: (&Peer, &[Round]), base: (&Peer, &[Round])) {
    let mut compare = |figure: &str, unit, value: fn(&Round) -> f64| {
        let values = |rounds: &[Round]| rounds.iter().map(value).collect::<Vec<_>>();
        let name = format!("{what}, {}: {figure}", side.0.name);
        let (of_side, of_base) = (values(side.1), values(base.1));
        report.ratio(name, unit, (side.0.name, &of_side), (base.0.name, &of_base), Aim::None);
    };
    compare("throughput", if what == "50 at once" { "times/s" } else { "requests/s" }, Round::rate);
    compare("p99", "µs", Round::p99);
}

async fn sides<F, Fut, const N: usize>(peers: &[Arc<Peer>; N], side: F) -> [Side<'static>; N]
where
    F: Fn(Arc<Peer>) -> Fut,
    Fut: Future<Output = Side<'static>>,
{
    let mut sides = Vec::with_capacity(N);
    for peer in peers {
        sides.push(side(Arc::clone(peer)).await);
    }
    sides.try_into().unwrap_or_else(|_| unreachable!("BUG: not a side for each"))
}

/// One of the ways, served.
struct Peer {
    name: &'static str,
    address: std::net::SocketAddr,
    sessions: Option<Sessions>,
    statuses: Mutex<BTreeMap<StatusCode, usize>>,
}

impl Peer {
    async fn serve(name: &'static str, app: Router, has_sessions: bool) -> Arc<Self> {
        let sessions = if has_sessions { Some(Sessions::open(&app, CLIENTS).await) } else { None };
        Arc::new(Self { name, address: harness::serve(app).await, sessions, statuses: Mutex::default() })
    }

    fn request(&self, user: usize, key: &str, reference: String, account: i32) -> Request<Full<Bytes>> {
        let new = NewPayment { account, reference, ..NewPayment::random() };
        let mut request = harness::post("/payments", Some(key), new.to_json());
        if let Some(sessions) = &self.sessions {
            sessions.sign(user, &mut request);
        }
        request
    }

    async fn new_keys(self: Arc<Self>) -> Side<'static> {
        let clients = Clients::connect(self.address, CLIENTS).await;
        clients.side(StatusCode::CREATED, move |client| {
            let key = Uuid::new_v4();
            self.request(client, &key.to_string(), format!("new {key}"), account(key))
        })
    }

    /// Each client has keys of its own, since each has a session of its own.
    fn again(&self, client: usize, n: usize) -> Request<Full<Bytes>> {
        let n = n % KEYS * CLIENTS + client;
        let (key, reference) = (format!("again {n}").replace(' ', "-"), format!("again {} {n}", self.name));
        self.request(client, &key, reference, i32::try_from(n % 1000).expect("a small number"))
    }

    async fn first_time(&self) {
        let mut client = Clients::connect(self.address, 1).await;
        for n in 0..KEYS {
            for user in 0..CLIENTS {
                client.once(self.again(user, n), StatusCode::CREATED).await;
            }
        }
    }

    async fn replays(self: Arc<Self>) -> Side<'static> {
        let clients = Clients::connect(self.address, CLIENTS).await;
        clients.side(StatusCode::CREATED, move |client| {
            self.again(client, usize::from(Uuid::new_v4().as_bytes()[0]))
        })
    }

    /// The same request from 50 clients at once, again and again with new keys.
    async fn duplicates(self: Arc<Self>) -> Side<'static> {
        let clients = Arc::new(Mutex::new(Clients::connect(self.address, DUPLICATES).await));
        Box::new(move |time| {
            let (peer, clients) = (Arc::clone(&self), Arc::clone(&clients));
            Box::pin(async move {
                let (mut clients, mut elapsed, mut times) =
                    (clients.lock().await, Duration::ZERO, Vec::new());
                while elapsed < time {
                    let key = Uuid::new_v4();
                    let reference = format!("at once {} {key}", peer.name);
                    let request = peer.request(0, &key.to_string(), reference, account(key));
                    let (statuses, took) = clients.at_once(&request).await;
                    elapsed += took;
                    times.push(took.as_secs_f64() * 1e6);
                    let mut counts = peer.statuses.lock().await;
                    for status in statuses {
                        *counts.entry(status).or_default() += 1;
                    }
                }
                Round::new(elapsed, times)
            })
        })
    }
}

fn account(key: Uuid) -> i32 {
    i32::from(u16::from_be_bytes([key.as_bytes()[0], key.as_bytes()[1]])) % 1000
}

/// Payments for one reference, of those that begin so: each has one key.
async fn runs(pool: &PgPool, references: &str) -> f64 {
    sqlx::query_scalar(
        "select count(*)::float8 / count(distinct reference) from payment where starts_with(reference, $1)",
    )
    .bind(references)
    .fetch_one(pool)
    .await
    .expect("payments")
}

const CLIENTS: usize = 16;
const DUPLICATES: usize = 50;

/// Of each client.
const KEYS: usize = 20;
