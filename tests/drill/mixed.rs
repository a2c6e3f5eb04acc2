//! All faults at once, in the manner of Jepsen.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::check::{effects, violations};
use crate::client::{Manners, attempt};
use crate::faults;
use crate::intent::Clients;
use crate::random::Random;
use crate::site::Site;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_intent_is_lost_doubled_or_answered_in_two_ways() {
    drill(number("DRILL_SECONDS").unwrap_or(10)).await;
}

/// Ten minutes of it, or `DRILL_SECONDS`: `cargo test --test drill -- --ignored`.
#[ignore = "it takes ten minutes"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_drill() {
    drill(number("DRILL_SECONDS").unwrap_or(600)).await;
}

async fn drill(seconds: u64) {
    let seed = number("DRILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("drill: DRILL_SEED={seed} DRILL_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let site = Site::with(&[1, 2, 5]).await;
    let until = Instant::now() + Duration::from_secs(seconds);
    let clients = Clients::of(site.replicas.iter().map(|replica| replica.service.address).collect(), until);
    let mut running = JoinSet::new();
    for _ in 0..CLIENTS {
        running.spawn(clients.clone().run(random.fork()));
    }
    let made = faults::make(&site, random.fork(), until).await;
    running.join_all().await;

    let mut broken = Vec::new();
    if let Err(left) = site.calms().await {
        broken.push(left);
    }
    let mut intents = std::mem::take(&mut *clients.intents.lock().unwrap());
    let before = effects(&site.admin).await;
    broken.extend(intents.iter().flat_map(|intent| violations(intent, &before)));
    let unanswered: Vec<_> = intents.iter_mut().filter(|intent| intent.answers.is_empty()).collect();
    let left_open = unanswered.len();
    for intent in unanswered {
        let address = random.one_of(&clients.addresses);
        let answer = attempt(address, &intent.request(""), Manners::Patient, Duration::from_secs(20)).await;
        let told = format!("{answer:?}");
        intent.hears(answer);
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

    let counts = &clients.counts;
    let load = |count: &std::sync::atomic::AtomicUsize| count.load(std::sync::atomic::Ordering::Relaxed);
    println!(
        "drill: {} intents in {seconds} s, {} attempts, {} left unanswered; {} told to wait, {} errors, {} without \
         an answer, {} replays; {} hang-ups, {} handlers with a fault",
        intents.len(),
        load(&counts.attempts),
        left_open,
        load(&counts.conflicts),
        load(&counts.errors),
        load(&counts.silences),
        load(&counts.replays),
        load(&counts.hang_ups),
        load(&counts.handler_faults),
    );
    for (kind, times) in &made {
        println!("drill: {times:>5} x {kind}");
    }
    println!("drill: {} violations", broken.len());
    assert!(broken.is_empty(), "DRILL_SEED={seed} DRILL_SECONDS={seconds}:\n{}", broken.join("\n"));
    assert!(intents.len() > 20 && left_open < intents.len(), "a drill of nothing: {}", intents.len());
    site.went_well();
}

const CLIENTS: usize = 16;
