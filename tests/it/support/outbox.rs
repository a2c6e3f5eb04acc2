//! Events, and publishers that do what a test wants.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower_idempotency::outbox::{Backoff, Event, MemoryPublisher, PublishError, Publisher, Relay, Relayed};

use super::eventually;

/// The n-th event of an aggregate.
pub(crate) fn event(aggregate: &str, n: i64) -> Event {
    Event::new("test", aggregate, "test.happened").json(&n).unwrap()
}

/// What [`event`] was made of.
pub(crate) fn number(event: &Event) -> i64 {
    std::str::from_utf8(event.payload().as_bytes()).unwrap().parse().unwrap()
}

/// Publishes the events in a transaction of their own.
pub(crate) async fn commit(pool: &PgPool, events: &[Event]) {
    let mut tx = pool.begin().await.unwrap();
    tower_idempotency::outbox::publish_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

/// A relay that loses no time.
pub(crate) fn relay(pool: &PgPool, publisher: impl Publisher) -> Relay {
    let quick = Duration::from_millis(10);
    Relay::new(pool.clone(), publisher).backoff(Backoff::new(quick, quick)).poll_interval(quick)
}

/// Rounds until one of them does nothing.
pub(crate) async fn drain(relay: &Relay) {
    while relay.run_once().await.unwrap() != Default::default() {}
}

/// A round in which one event, the first of the one lane that there is, cannot be published, and is
/// not given up.
pub(crate) async fn waits(pool: &PgPool, relay: &Relay) {
    time_passes(pool).await;
    let relayed = relay.run_once().await.unwrap();
    assert_eq!((relayed.published, relayed.failed, relayed.dead), (0, 1, 0));
}

/// Rounds until nothing waits.
#[track_caller]
pub(crate) fn recovers(pool: &PgPool, relay: &Relay) -> impl Future<Output = ()> {
    let at = Location::caller();
    eventually(at, async move || {
        time_passes(pool).await;
        relay.run_once().await.unwrap();
        let waiting = waiting(pool).await;
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} wait: {:?}", errors(pool).await)) }
    })
}

/// Why events were not published.
async fn errors(pool: &PgPool) -> Vec<Option<String>> {
    sqlx::query_scalar("select last_error from idempotency.outbox_lane").fetch_all(pool).await.unwrap()
}

/// A publisher that publishes each event, and loses the first acknowledgement.
pub(crate) fn losing(publisher: impl Publisher) -> impl Publisher {
    let (publisher, is_lost) = (Arc::new(publisher), Arc::new(AtomicBool::new(true)));
    move |event: Event| {
        let (publisher, is_lost) = (Arc::clone(&publisher), Arc::clone(&is_lost));
        async move {
            publisher.publish(event).await?;
            match is_lost.swap(false, Ordering::SeqCst) {
                true => Err(PublishError::unavailable("the acknowledgement was lost")),
                false => Ok(()),
            }
        }
    }
}

/// How many events wait.
pub(crate) async fn waiting(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from idempotency.outbox").fetch_one(pool).await.unwrap()
}

/// How many lanes there are.
pub(crate) async fn lanes(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from idempotency.outbox_lane").fetch_one(pool).await.unwrap()
}

/// Makes all leases and backoffs end now.
pub(crate) async fn time_passes(pool: &PgPool) {
    sqlx::query("update idempotency.outbox_lane set ready_at = now()").execute(pool).await.unwrap();
}

/// A round of a relay that takes a lane from another one, which lives and may renew it first.
pub(crate) async fn overtake(pool: &PgPool, relay: Relay, gate: &Gate) -> JoinHandle<Relayed> {
    loop {
        sqlx::query("update idempotency.outbox_lane set ready_at = now() where aggregateid = $1")
            .bind(&gate.aggregate)
            .execute(pool)
            .await
            .unwrap();
        let relay = relay.clone();
        let mut round = tokio::spawn(async move { relay.run_once().await.unwrap() });
        tokio::select! {
            () = gate.arrival() => return round,
            nothing = &mut round => assert_eq!(nothing.unwrap(), Default::default()),
        }
    }
}

/// A publisher that fails for chosen aggregates, and counts.
#[derive(Clone, Default)]
pub(crate) struct Moody {
    pub(crate) published: MemoryPublisher,
    pub(crate) attempts: Arc<AtomicUsize>,
    poison: Arc<Mutex<Option<Poison>>>,
}

type Poison = Box<dyn Fn(&Event) -> Option<PublishError> + Send + Sync>;

impl Moody {
    /// Fails where the function says so.
    pub(crate) fn fails(&self, poison: impl Fn(&Event) -> Option<PublishError> + Send + Sync + 'static) {
        *self.poison.lock().unwrap() = Some(Box::new(poison));
    }

    pub(crate) fn recovers(&self) {
        *self.poison.lock().unwrap() = None;
    }

    /// The numbers of the published events of an aggregate.
    pub(crate) fn numbers(&self, aggregate: &str) -> Vec<i64> {
        let events = self.published.events();
        events.iter().filter(|event| event.aggregate_id() == aggregate).map(number).collect()
    }

    pub(crate) fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

impl Publisher for Moody {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let refused = self.poison.lock().unwrap().as_ref().and_then(|poison| poison(&event));
        match refused {
            Some(error) => Err(error),
            None => self.published.publish(event).await,
        }
    }
}

/// A publisher that waits for a permit before each event of one aggregate.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) published: MemoryPublisher,
    pub(crate) arrived: Arc<Semaphore>,
    pub(crate) open: Arc<Semaphore>,
    aggregate: String,
}

impl Gate {
    pub(crate) fn on(aggregate: &str) -> Self {
        Self {
            published: MemoryPublisher::default(),
            arrived: Arc::new(Semaphore::new(0)),
            open: Arc::new(Semaphore::new(0)),
            aggregate: aggregate.to_owned(),
        }
    }

    /// Until an event stands before the gate.
    pub(crate) async fn arrival(&self) {
        let arrived = tokio::time::timeout(Duration::from_secs(60), self.arrived.acquire()).await;
        arrived.expect("no event stands before the gate").unwrap().forget();
    }
}

impl Publisher for Gate {
    async fn publish(&self, event: Event) -> Result<(), PublishError> {
        if event.aggregate_id() == self.aggregate {
            self.arrived.add_permits(1);
            self.open.acquire().await.unwrap().forget();
        }
        self.published.publish(event).await
    }
}
