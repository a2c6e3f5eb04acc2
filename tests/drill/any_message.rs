//! One fault at each message between a service and its database, from the first of a connection to
//! the last of a request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::client::{Answer, Manners, attempt};
use crate::intent::Intent;
use crate::network::Fate;
use crate::service::Service;
use crate::site::{Site, server};

/// Lets so many messages pass, and then makes its fault once.
#[derive(Default)]
struct Fuse {
    left: AtomicUsize,
    service: OnceLock<Weak<Service>>,
}

impl Fuse {
    fn burns(&self) -> bool {
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) == Ok(1)
    }

    /// Whether the fault was not made; it will not be any more.
    fn is_left(&self) -> bool {
        self.left.swap(0, Ordering::SeqCst) > 0
    }

    fn kill(&self) {
        self.service.get().and_then(Weak::upgrade).unwrap().kill();
    }
}

/// Makes the fault at the first message, the second, .. until a request needs no more messages.
/// The same intent's retry settles it, and it has one effect.
async fn at_any_message(fate: Fate, kills: bool) {
    let fuse = Arc::new(Fuse::default());
    let burning = Arc::clone(&fuse);
    let site = Site::deciding(server(), move |_| {
        if !burning.burns() {
            return Fate::Forward;
        }
        if kills {
            burning.kill();
        }
        fate
    })
    .await;
    let service = &site.replicas[0].service;
    fuse.service.set(Arc::downgrade(service)).unwrap();
    let mut faults = 0;
    for number in 1.. {
        let mut intent = Intent { number, refused: number % 3 == 0, answers: Vec::new(), wrong: Vec::new() };
        fuse.left.store(usize::try_from(number).unwrap(), Ordering::SeqCst);
        let first = attempt(service.address, &intent.request(""), Manners::Patient, PATIENCE).await;
        let over = fuse.is_left();
        faults += usize::from(!over);
        if kills && !over {
            service.restart();
        }
        intent.hears(first);
        let settled = settle(&site, &mut intent).await;
        let effects = i64::from(!intent.refused);
        assert_eq!(site.effects(number).await, effects, "message {number}, {fate:?}: {intent:?}");
        let same = intent.answers.iter().all(|answer| answer.body == settled.body);
        assert!(same && intent.wrong.is_empty(), "message {number}, {fate:?}: {intent:?}");
        if over && !intent.refused {
            break;
        }
    }
    assert!(faults > 6, "a request takes more than {faults} messages");
    site.calms().await.unwrap();
    site.went_well();
}

/// Asks with the same key until it has the answer.
pub(crate) async fn settle(site: &Site, intent: &mut Intent) -> Answer {
    let started = Instant::now();
    loop {
        let address = site.replicas.last().unwrap().service.address;
        let answer = attempt(address, &intent.request(""), Manners::Patient, PATIENCE).await;
        let told = format!("{answer:?}");
        if intent.hears(answer) {
            return intent.answers.last().or(intent.wrong.last()).unwrap().clone();
        }
        assert!(started.elapsed() < PATIENCE, "it is not settled: {intent:?}, {told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_is_killed_before_any_message() {
    at_any_message(Fate::Lost, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_is_killed_after_any_message() {
    at_any_message(Fate::Forward, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_network_is_cut_before_any_message() {
    at_any_message(Fate::Lost, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_network_is_cut_before_any_answer() {
    at_any_message(Fate::Unanswered, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backend_is_terminated_at_any_message() {
    at_any_message(Fate::Terminated, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_answers_any_message_with_08p01() {
    at_any_message(Fate::Denied, false).await;
}

const PATIENCE: Duration = Duration::from_secs(30);
