//! The scheduler: one fault after the other, at random.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::network::{Fate, Weather, signal};
use crate::random::Random;
use crate::site::Site;

/// How many of each kind were made.
pub(crate) type Made = BTreeMap<&'static str, usize>;

/// Each as often as it stands here; the last ones hold everything up for a while.
const KINDS: [&str; 24] = [
    "service killed",
    "service killed",
    "service killed",
    "backend terminated",
    "backend terminated",
    "backend terminated",
    "backend terminated",
    "network cut",
    "network cut",
    "network slow",
    "COMMIT lost",
    "COMMIT lost",
    "COMMIT unanswered",
    "COMMIT unanswered",
    "COMMIT unanswered",
    "COMMIT denied (08P01)",
    "COMMIT denied (08P01)",
    "COMMIT late",
    "COMMIT late",
    "COMMIT's answer stalled",
    "backend terminated in COMMIT",
    "network swallows",
    "backend killed",
    "server killed",
];

/// Makes faults until the time is over.
pub(crate) async fn make(site: &Site, mut random: Random, until: Instant) -> Made {
    let mut made = Made::new();
    // Each kind once, in any order; then as it comes.
    let all = if site.bouncer.is_some() { [&KINDS[..], &["proxy killed"]].concat() } else { KINDS.to_vec() };
    let mut kinds = all.clone();
    kinds.dedup();
    while Instant::now() < until {
        let kind = if kinds.is_empty() {
            random.one_of(&all)
        } else {
            kinds.swap_remove(usize::try_from(random.below(kinds.len() as u64)).unwrap())
        };
        fault(site, kind, &mut random).await;
        *made.entry(kind).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(20 + random.below(250))).await;
    }
    made
}

async fn fault(site: &Site, kind: &str, random: &mut Random) {
    let at = usize::try_from(random.below(site.replicas.len() as u64)).unwrap();
    let replica = &site.replicas[at];
    let short = Duration::from_millis(random.below(300));
    match kind {
        "service killed" => {
            replica.service.kill();
            tokio::time::sleep(short).await;
            replica.service.restart();
        }
        "backend terminated" => signal("TERM", backend(site).await),
        "backend killed" => signal("KILL", backend(site).await),
        "server killed" => {
            site.server.kill().unwrap();
            tokio::time::sleep(short).await;
            tokio::task::block_in_place(|| site.server.restart()).unwrap();
        }
        "proxy killed" => {
            let proxy = site.bouncer.as_ref().unwrap();
            proxy.kill();
            tokio::time::sleep(short).await;
            proxy.restart();
        }
        "network cut" => during(replica, Weather::Cut, short).await,
        "network slow" => during(replica, Weather::Slow(Duration::from_millis(5)), short * 2).await,
        "network swallows" => during(replica, Weather::Hole, short * 3).await,
        "COMMIT lost" => replica.network.next_commit(Fate::Lost),
        "COMMIT unanswered" => replica.network.next_commit(Fate::Unanswered),
        "COMMIT denied (08P01)" => replica.network.next_commit(Fate::Denied),
        "COMMIT late" => replica.network.next_commit(Fate::Late(short * 4)),
        "COMMIT's answer stalled" => replica.network.next_commit(Fate::Stalled(short * 5)),
        "backend terminated in COMMIT" => replica.network.next_commit(Fate::Terminated),
        other => panic!("no such fault: {other}"),
    }
}

async fn during(replica: &crate::site::Replica, weather: Weather, time: Duration) {
    replica.network.turns(weather);
    tokio::time::sleep(time).await;
    replica.network.turns(Weather::Clear);
}

/// One of those that serve a service, in a transaction if any is.
async fn backend(site: &Site) -> u32 {
    let pid: Result<Option<i32>, _> = sqlx::query_scalar(
        "select pid from pg_stat_activity
         where backend_type = 'client backend' and application_name <> 'admin'
         order by xact_start is null, random() limit 1",
    )
    .fetch_optional(&site.admin)
    .await;
    pid.ok().flatten().map_or(0, |pid| u32::try_from(pid).unwrap())
}
