//! What must be so when all is calm again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::TryStreamExt as _;
use sqlx::PgPool;
use uuid::Uuid;

use super::nats::stored;
use super::{STREAM, Scene};

/// One delivery to the broker's stream.
struct Delivery {
    event: Uuid,
    aggregate: String,
    version: i64,
}

/// Waits until nothing is left to do, and names the promises that were broken.
pub(super) async fn broken(scene: &Scene) -> Vec<String> {
    let mut broken = Vec::new();
    if let Err(left) = settles(scene).await {
        broken.push(left);
    }
    for relay in &scene.relays {
        broken.extend(tokio::task::block_in_place(|| relay.stops()).err());
    }
    let registered = count(&scene.admin, "select count(*) from idempotency.outbox_relay").await;
    if registered != 0 {
        broken.push(format!("{registered} relays are registered when all have stopped"));
    }
    let dead = count(&scene.admin, "select count(*) from idempotency.outbox_dead").await;
    if dead != 0 {
        broken.push(format!("{dead} events are dead letters"));
    }
    let placed: Vec<(Uuid, String, i64)> =
        sqlx::query_as("select event, aggregate, version from placed").fetch_all(&scene.admin).await.unwrap();
    let deliveries = deliveries(scene).await;
    println!("outbox drill: {} events committed, {} delivered", placed.len(), deliveries.len());
    broken.extend(delivered(&placed, &deliveries));
    broken.extend(effects(scene, &placed).await);
    broken.truncate(MOST_TOLD);
    broken
}

/// No event and no lane waits, every message is done, and relays that were killed are forgotten.
async fn settles(scene: &Scene) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let left: Result<String, _> = sqlx::query_scalar(
            "select concat_ws(', ',
               (select nullif(count(*), 0) || ' events' from idempotency.outbox),
               (select nullif(count(*), 0) || ' lanes: ' || min(l::text) from idempotency.outbox_lane l),
               (select nullif(count(*), 0) || ' without an effect' from placed p
                where not exists (select from effect e where e.event = p.event)),
               (select nullif(count(*), $1) || ' relays' from idempotency.outbox_relay))",
        )
        .bind(i64::try_from(scene.relays.len()).unwrap())
        .fetch_one(&scene.admin)
        .await;
        match left {
            Ok(left) if left.is_empty() => return Ok(()),
            left if started.elapsed() > PATIENCE => return Err(format!("left over: {left:?}")),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// At least once, nothing that was not committed, and in order per aggregate.
fn delivered(placed: &[(Uuid, String, i64)], deliveries: &[Delivery]) -> Vec<String> {
    let mut broken = Vec::new();
    let committed: HashMap<Uuid, (&str, i64)> =
        placed.iter().map(|(event, aggregate, version)| (*event, (aggregate.as_str(), *version))).collect();
    let mut seen = HashSet::new();
    let mut versions: HashMap<&str, i64> = HashMap::new();
    for Delivery { event, aggregate, version } in deliveries {
        if committed.get(event) != Some(&(aggregate.as_str(), *version)) {
            broken.push(format!("delivered, and not so committed: {event}, {version} of {aggregate}"));
        }
        if seen.insert(*event) {
            let before = versions.insert(aggregate, *version).unwrap_or(0);
            if *version != before + 1 {
                broken.push(format!("{version} of {aggregate} was first delivered after {before}"));
            }
        }
    }
    let lost = placed.iter().filter(|(event, ..)| !seen.contains(event));
    broken.extend(lost.map(|lost| format!("never delivered: {lost:?}")));
    broken
}

/// One for each, and in order where an order was asked for.
async fn effects(scene: &Scene, placed: &[(Uuid, String, i64)]) -> Vec<String> {
    let mut broken = Vec::new();
    let done: Vec<(Uuid, i64)> = sqlx::query_as("select event, count(*) from effect group by event")
        .fetch_all(&scene.admin)
        .await
        .unwrap();
    let done: HashMap<Uuid, i64> = done.into_iter().collect();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for (event, aggregate, version) in placed {
        let effects = done.get(event).copied().unwrap_or(0);
        if effects != 1 {
            broken.push(format!("{effects} effects of {event}, {version} of {aggregate}"));
        }
        let last = last.entry(aggregate).or_default();
        *last = (*last).max(*version);
    }
    if done.len() > placed.len() {
        broken.push(format!("{} events have effects, and {} were committed", done.len(), placed.len()));
    }
    let applied: Vec<(String, i64)> = sqlx::query_as("select aggregate, version from applied order by id")
        .fetch_all(&scene.admin)
        .await
        .unwrap();
    let mut reached: BTreeMap<&str, i64> = BTreeMap::new();
    for (aggregate, version) in &applied {
        let before = reached.insert(aggregate, *version).unwrap_or(0);
        if *version <= before {
            broken.push(format!("{version} of {aggregate} was applied after {before}"));
        }
    }
    if reached != last {
        broken.push(format!("applied up to {reached:?}, and committed up to {last:?}"));
    }
    broken
}

/// All that the stream has, in its order.
async fn deliveries(scene: &Scene) -> Vec<Delivery> {
    let context = {
        let nats = scene.nats().url();
        async_nats::jetstream::new(async_nats::connect(nats).await.unwrap())
    };
    let mut stream = context.get_stream(STREAM).await.unwrap();
    let config = pull::Config { ack_policy: AckPolicy::None, ..Default::default() };
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut left = stored(&mut stream).await;
    let mut deliveries = Vec::new();
    while left > 0 {
        let batch = consumer.fetch().max_messages(500).messages().await.unwrap();
        let batch: Vec<_> = batch.try_collect().await.unwrap();
        assert!(!batch.is_empty(), "{left} messages are missing");
        left -= u64::try_from(batch.len()).unwrap();
        deliveries.extend(batch.iter().map(|message| {
            let header = |name| message.headers.as_ref().unwrap().get(name).unwrap().as_str().to_owned();
            Delivery {
                event: header("Nats-Msg-Id").parse().unwrap(),
                aggregate: header("aggregate-id"),
                version: serde_json::from_slice(&message.payload).unwrap(),
            }
        }));
    }
    deliveries
}

pub(super) async fn count(pool: &PgPool, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement).fetch_one(pool).await.unwrap()
}

/// Longer than a redelivery and every pause of a relay; and this is a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One broken promise breaks a thousand.
const MOST_TOLD: usize = 50;
