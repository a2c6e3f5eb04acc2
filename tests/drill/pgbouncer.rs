//! The same through PgBouncer in transaction mode.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Answer, Manners, attempt};
use crate::intent::Intent;
use crate::mixed::{drill, number};
use crate::network::Network;
use crate::service::{Service, Settings};
use crate::site::{Replica, Site, server, settings};

#[path = "../shared/pgbouncer.rs"]
mod bouncer;

pub(crate) use bouncer::{Bouncer, program};

/// Fewer connections than its clients have.
pub(crate) fn start(program: PathBuf, server: &devpg::Server) -> Bouncer {
    let database = format!(
        "postgres = host=127.0.0.1 port={} user=postgres password={} dbname=postgres",
        server.port(),
        server.password(),
    );
    Bouncer::start(program, server, &database, 5)
}

/// Two replicas with more connections than PgBouncer has to the server.
async fn site_through(program: PathBuf, log: &Path) -> Site {
    let server = server();
    let bouncer = start(program, &server);
    let mut replicas = Vec::new();
    for pool in [5, 5] {
        let network = Network::to(bouncer.port).await;
        let settings = Settings { unnamed: true, ..settings(&server, network.port, pool) };
        let service = Arc::new(Service::start(settings, log));
        replicas.push(Replica { network, service });
    }
    let mut site = Site::of(server, replicas, log.to_owned()).await;
    site.bouncer = Some(bouncer);
    site
}

/// The same intent so often at once, each at one of the replicas, until each has the answer.
async fn race(site: &Site, number: i64, refused: bool) -> Vec<Answer> {
    let mut racing = JoinSet::new();
    for n in 0..20 {
        let address = site.replicas[n % site.replicas.len()].service.address;
        racing.spawn(async move {
            let mut intent = Intent { number, refused, answers: Vec::new(), wrong: Vec::new() };
            let started = Instant::now();
            loop {
                let request = intent.request("");
                let answer = attempt(address, &request, Manners::Patient, Duration::from_secs(20)).await;
                let told = format!("{answer:?}");
                if intent.hears(answer) {
                    return intent.answers.pop().expect(&told);
                }
                assert!(told.contains("409") || started.elapsed() < Duration::from_secs(5), "{told}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    racing.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_concurrency_and_refusals_work_through_pgbouncer() {
    let Some(program) = program() else { return };
    let site = site_through(program, &crate::site::log()).await;
    for number in 1..=30 {
        let refused = number % 3 == 0;
        let answers = race(&site, number, refused).await;
        let first: Vec<_> = answers.iter().filter(|answer| !answer.replayed).collect();
        assert_eq!(first.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.body == first[0].body), "{answers:?}");
        assert_eq!(site.effects(number).await, i64::from(!refused));
    }
    let reused = crate::client::request("intent-1", r#"{"intent":1,"refused":true}"#, "");
    let address = site.replicas[0].service.address;
    let reused = attempt(address, &reused, Manners::Patient, Duration::from_secs(20)).await.unwrap();
    assert_eq!(reused.status, 422, "{reused:?}");
    site.calms().await.unwrap();
    site.went_well();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_through_pgbouncer_no_intent_is_lost_or_doubled() {
    let Some(program) = program() else { return };
    let site = site_through(program, &crate::site::log()).await;
    drill(site, number("DRILL_SECONDS").unwrap_or(6)).await;
}
