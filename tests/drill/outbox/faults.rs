//! What is done to all of them, one after the other, at random.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{LEASE, Scene};
use crate::network::signal;
use crate::random::Random;

/// How many of each kind were made.
pub(super) type Made = BTreeMap<&'static str, usize>;

/// Each as often as it stands here.
const KINDS: [&str; 17] = [
    "relay killed",
    "relay killed",
    "relay killed",
    "relay killed",
    "consumer killed",
    "consumer killed",
    "consumer killed",
    "backend terminated",
    "backend terminated",
    "backend terminated",
    "backend terminated",
    "relay stopped, in order",
    "relay standing still for longer than its lease",
    "all relays killed",
    "broker killed",
    "broker killed",
    "database killed",
];

/// Makes faults until the time is over.
pub(super) async fn make(scene: &Scene, mut random: Random, until: Instant) -> Made {
    let mut made = Made::new();
    // Each kind once, in any order; then as it comes.
    let mut kinds = KINDS.to_vec();
    kinds.dedup();
    while Instant::now() < until {
        let kind = if kinds.is_empty() {
            random.one_of(&KINDS)
        } else {
            kinds.swap_remove(usize::try_from(random.below(kinds.len() as u64)).unwrap())
        };
        fault(scene, kind, &mut random).await;
        *made.entry(kind).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(100 + random.below(400))).await;
    }
    made
}

async fn fault(scene: &Scene, kind: &str, random: &mut Random) {
    let relay = &scene.relays[usize::try_from(random.below(scene.relays.len() as u64)).unwrap()];
    let consumer = &scene.consumers[usize::try_from(random.below(scene.consumers.len() as u64)).unwrap()];
    let short = Duration::from_millis(random.below(300));
    match kind {
        "relay killed" => {
            relay.kill();
            tokio::time::sleep(short).await;
            relay.restart();
        }
        "relay stopped, in order" => {
            tokio::task::block_in_place(|| relay.stops()).unwrap();
            relay.restart();
        }
        "relay standing still for longer than its lease" => relay.stands_still(LEASE + short).await,
        "all relays killed" => {
            scene.relays.iter().for_each(super::Process::kill);
            tokio::time::sleep(short).await;
            scene.relays.iter().for_each(super::Process::restart);
        }
        "consumer killed" => {
            consumer.kill();
            tokio::time::sleep(short).await;
            consumer.restart();
        }
        "backend terminated" => signal("TERM", backend(scene).await),
        "broker killed" => {
            scene.nats().kill();
            tokio::time::sleep(short).await;
            tokio::task::block_in_place(|| scene.nats().restart());
        }
        "database killed" => {
            scene.server.kill().unwrap();
            tokio::time::sleep(short).await;
            tokio::task::block_in_place(|| scene.server.restart()).unwrap();
        }
        other => panic!("no such fault: {other}"),
    }
}

/// That of a relay's session, a relay, a consumer or a writer.
async fn backend(scene: &Scene) -> u32 {
    let pid: Result<Option<i32>, _> = sqlx::query_scalar(
        "select pid from pg_stat_activity
         where backend_type = 'client backend' and application_name <> 'admin'
         order by random() limit 1",
    )
    .fetch_optional(&scene.admin)
    .await;
    pid.ok().flatten().map_or(0, |pid| u32::try_from(pid).unwrap())
}
