//! Faults that need a scene of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use crate::any_message::settle;
use crate::client::{Answer, Manners, attempt};
use crate::intent::Intent;
use crate::network::Fate;
use crate::service::{EXECUTION_TIMEOUT, Service};
use crate::site::{Replica, Site, server, settings};
use crate::wire::Frame;

fn intent(number: i64) -> Intent {
    Intent { number, refused: false, answers: Vec::new(), wrong: Vec::new() }
}

async fn ask(site: &Site, intent: &Intent) -> Option<Answer> {
    attempt(site.replicas[0].service.address, &intent.request(""), Manners::Patient, Duration::from_secs(40))
        .await
}

/// A second replica, whose network is whole.
async fn second(site: &mut Site, log: &std::path::Path) {
    let network = crate::network::Network::to(site.server.port()).await;
    let service = Arc::new(Service::start(settings(&site.server, network.port, 2), log));
    site.replicas.push(Replica { network, service });
}

/// Swallows the first message of this kind, and all after it.
async fn a_black_hole_at(is_it: impl Fn(&Frame) -> bool + Send + Sync + 'static) {
    let swallowed = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&swallowed);
    let mut site = Site::deciding(server(), move |frame| {
        if is_it(frame) && !once.swap(true, Ordering::SeqCst) { Fate::Swallowed } else { Fate::Forward }
    })
    .await;
    second(&mut site, &crate::site::log()).await;
    let mut intent = intent(1);
    let started = Instant::now();
    let (first, settled) = tokio::join!(ask(&site, &intent), async {
        while !swallowed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut retry = Intent { number: 1, refused: false, answers: Vec::new(), wrong: Vec::new() };
        let settled = settle(&site, &mut retry).await;
        (settled, started.elapsed())
    });
    let (settled, took) = settled;
    assert_eq!(settled.status, 201, "{settled:?}");
    // The idle timeout, and what it takes a busy machine to notice.
    assert!(took < EXECUTION_TIMEOUT + Duration::from_secs(5 + 5), "{took:?}");
    // Whatever the first was told, it was not another answer.
    if intent.hears(first) {
        assert_eq!(intent.answers[0].body, settled.body);
    }
    assert_eq!(site.effects(1).await, 1);
    site.calms().await.unwrap();
    site.went_well();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_the_handlers_statement_frees_the_key_within_the_idle_timeout() {
    a_black_hole_at(|frame| frame.kind == b'P' && contains(frame, b"into effect")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_commit_frees_the_key_within_the_idle_timeout() {
    a_black_hole_at(Frame::is_commit).await;
}

fn contains(frame: &Frame, text: &[u8]) -> bool {
    frame.bytes.windows(text.len()).any(|part| part == text)
}

/// COMMIT waits for a standby that is not there, until it is not waited for any more.
struct Away(Site);

impl Away {
    async fn begins() -> Self {
        let site = Site::with(&[3]).await;
        // Its connection is there before: else its start would wait, too.
        settle(&site, &mut intent(100)).await;
        let away = Self(site);
        away.wait_for("away").await;
        // The server takes its time to know.
        let probes = async {
            loop {
                let probe = sqlx::query("insert into effect (intent) values (-1)");
                let _ = probe.execute(&away.0.admin).await;
            }
        };
        let pid = tokio::select! {
            () = probes => unreachable!(),
            pid = away.waiter() => pid,
        };
        // A COMMIT whose wait is cancelled is committed here.
        sqlx::query("select pg_terminate_backend($1, 5000)").bind(pid).execute(&away.0.admin).await.unwrap();
        away
    }

    async fn wait_for(&self, standby: &str) {
        let set = format!("alter system set synchronous_standby_names = '{standby}'");
        sqlx::query(AssertSqlSafe(set)).execute(&self.0.admin).await.unwrap();
        sqlx::query("select pg_reload_conf()").execute(&self.0.admin).await.unwrap();
    }

    /// The process that waits in COMMIT.
    async fn waiter(&self) -> i32 {
        let started = Instant::now();
        loop {
            let pid =
                sqlx::query_scalar("select pid from pg_stat_activity where wait_event = 'SyncRep' limit 1");
            if let Some(pid) = pid.fetch_optional(&self.0.admin).await.unwrap() {
                return pid;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "nobody waits for the standby");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ends(self, number: i64) {
        assert_eq!(self.0.effects(number).await, 1);
        self.0.calms().await.unwrap();
        self.0.went_well();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_standby_is_answered_when_the_standby_has_it() {
    let away = Away::begins().await;
    let mut waiting = intent(1);
    let (first, second) = tokio::join!(ask(&away.0, &waiting), async {
        away.waiter().await;
        let second = ask(&away.0, &intent(1)).await.unwrap();
        away.wait_for("").await;
        second
    });
    assert_eq!(second.status, 409, "{second:?}");
    assert!(waiting.hears(first) && waiting.answers.len() == 1, "{waiting:?}");
    let replay = ask(&away.0, &waiting).await.unwrap();
    assert_eq!((&replay.body, replay.replayed), (&waiting.answers[0].body, true));
    away.ends(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_standby_for_too_long_is_a_503_and_the_retry_settles_it() {
    let away = Away::begins().await;
    let first = ask(&away.0, &intent(1)).await.unwrap();
    assert_eq!(first.status, 503, "{first:?}");
    assert!(first.body.contains("outcome-unknown"), "{first:?}");
    // It is still open: nobody else may execute.
    let second = ask(&away.0, &intent(1)).await.unwrap();
    assert_eq!(second.status, 409, "{second:?}");
    away.waiter().await;
    away.wait_for("").await;
    let settled = settle(&away.0, &mut intent(1)).await;
    assert!(settled.replayed, "it was committed all the time: {settled:?}");
    away.ends(1).await;
}

/// By the database's clock alone: a record is neither too old nor too young for a service whose own
/// clock is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_whose_clock_is_days_ahead_replays_what_others_recorded() {
    let there = std::process::Command::new("faketime").arg("--version").output().is_ok();
    let required = std::env::var("TOWER_IDEMPOTENCY_REQUIRE").unwrap_or_default();
    if !there {
        assert!(!required.split(',').any(|name| name.trim() == "faketime"), "faketime is not installed");
        eprintln!("SKIPPED: faketime is not installed");
        return;
    }
    let mut site = Site::with(&[2]).await;
    let log = crate::site::log();
    let network = crate::network::Network::to(site.server.port()).await;
    let settings = crate::service::Settings { ahead: Some("+3d"), ..settings(&site.server, network.port, 2) };
    let service = Arc::new(Service::start(settings, &log));
    site.replicas.push(Replica { network, service });
    let first = ask(&site, &intent(1)).await.unwrap();
    assert_eq!(first.status, 201, "{first:?}");
    let later = settle(&site, &mut intent(1)).await;
    assert!(later.replayed && later.body == first.body, "{later:?}");
    // And the other way: what it records is kept for as long, and not for longer.
    settle(&site, &mut intent(2)).await;
    let replayed = ask(&site, &intent(2)).await.unwrap();
    assert!(replayed.replayed, "{replayed:?}");
    let kept: bool = sqlx::query_scalar(
        "select bool_and(expires_at between now() + interval '23 hours' and now() + interval '25 hours')
         from idempotency.record",
    )
    .fetch_one(&site.admin)
    .await
    .unwrap();
    assert!(kept);
    site.calms().await.unwrap();
    let _ = std::fs::remove_file(log);
    site.went_well();
}

/// The server is killed when COMMIT has met this fate.
async fn killed_in_commit(fate: Fate) -> (Site, Option<Answer>, Intent) {
    let (commits, mut seen) = tokio::sync::watch::channel(false);
    let site = Site::deciding(server(), move |frame| {
        if frame.is_commit() && !commits.send_replace(true) { fate } else { Fate::Forward }
    })
    .await;
    let mut intent = intent(1);
    let (first, ()) = tokio::join!(ask(&site, &intent), async {
        seen.wait_for(|seen| *seen).await.unwrap();
        tokio::task::block_in_place(|| {
            site.server.kill().unwrap();
            site.server.restart().unwrap();
        });
    });
    settle(&site, &mut intent).await;
    assert_eq!(site.effects(1).await, 1);
    site.calms().await.unwrap();
    (site, first, intent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_killed_before_commit_arrives_and_the_retry_runs() {
    let (site, first, intent) = killed_in_commit(Fate::Lost).await;
    assert_eq!(first.unwrap().status, 503);
    assert!(!intent.answers[0].replayed, "{intent:?}");
    site.went_well();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_killed_as_it_commits_and_there_is_one_effect() {
    let (site, first, intent) = killed_in_commit(Fate::Unanswered).await;
    // Which of the two came first is open; what the first was told is not.
    let first = first.unwrap();
    assert_eq!(first.status == 201, intent.answers[0].replayed, "{first:?} {intent:?}");
    site.went_well();
}
