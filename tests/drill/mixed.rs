//! All faults at once, in the manner of Jepsen.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::check::{effects, violations};
use crate::client::{Manners, attempt};
use crate::faults::{self, Made};
use crate::intent::{Clients, Intent};
use crate::random::Random;
use crate::site::Site;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_intent_is_lost_doubled_or_answered_in_two_ways() {
    drill(Site::with(&[1, 2, 5]).await, number("DRILL_SECONDS").unwrap_or(15)).await;
}

/// Ten minutes of it, or `DRILL_SECONDS`: `cargo test --test drill -- --ignored`.
#[ignore = "it takes ten minutes"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_drill() {
    drill(Site::with(&[1, 2, 5]).await, number("DRILL_SECONDS").unwrap_or(600)).await;
}

/// Makes faults for so long, and checks what has become of everybody's intents.
pub(crate) async fn drill(site: Site, seconds: u64) {
    let seed = number("DRILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("drill: DRILL_SEED={seed} DRILL_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (clients, running) = clients(&site, &mut random, until);
    let made = faults::make(&site, random.fork(), until).await;
    running.join_all().await;
    let (intents, broken) = settle(&site, &clients, &mut random).await;
    summary(&clients, &intents, &made, &broken);
    assert!(broken.is_empty(), "DRILL_SEED={seed} DRILL_SECONDS={seconds}:\n{}", broken.join("\n"));
    assert!(intents.iter().any(|intent| intent.answers.len() > 1), "a drill of nothing");
    site.went_well();
}

/// Clients that insist on their intents until then.
pub(crate) fn clients(site: &Site, random: &mut Random, until: Instant) -> (Clients, JoinSet<()>) {
    let clients = Clients::of(site.replicas.iter().map(|replica| replica.service.address).collect(), until);
    let mut running = JoinSet::new();
    for _ in 0..CLIENTS {
        running.spawn(clients.clone().run(random.fork()));
    }
    (clients, running)
}

/// Mends everything, retries once what has no answer yet, and names the promises that were broken.
pub(crate) async fn settle(
    site: &Site,
    clients: &Clients,
    random: &mut Random,
) -> (Vec<Intent>, Vec<String>) {
    let mut broken = Vec::new();
    if let Err(left) = site.calms().await {
        broken.push(left);
    }
    let mut intents = std::mem::take(&mut *clients.intents.lock().unwrap());
    let before = effects(&site.admin).await;
    broken.extend(intents.iter().flat_map(|intent| violations(intent, &before)));
    for intent in intents.iter_mut().filter(|intent| intent.answers.is_empty()) {
        let address = random.one_of(&clients.addresses);
        let answer = attempt(address, &intent.request(""), Manners::Patient, Duration::from_secs(20)).await;
        let told = format!("{answer:?}");
        intent.hears(answer);
        clients.counts.settled_late.fetch_add(1, Ordering::Relaxed);
        if intent.answers.is_empty() {
            broken.push(format!("one retry does not settle it: {intent:?}, {told}"));
        }
    }
    if let Err(left) = site.nothing_is_left().await {
        broken.push(left);
    }
    let after = effects(&site.admin).await;
    broken.extend(intents.iter().flat_map(|intent| violations(intent, &after)));
    broken.sort();
    broken.dedup();
    (intents, broken)
}

pub(crate) fn summary(clients: &Clients, intents: &[Intent], made: &Made, broken: &[String]) {
    println!("drill: {} intents, {}", intents.len(), clients.counts);
    for (kind, times) in made {
        println!("drill: {times:>5} x {kind}");
    }
    println!("drill: {} violations", broken.len());
}

const CLIENTS: usize = 24;
