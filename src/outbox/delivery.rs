//! Publishes the events of one lane, in order.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::event::Event;
use super::lane::{Batch, Failed, Lane};
use super::outcome::{End, Outcome};
use super::publisher::{PublishError, Verdict};
use super::relay::Config;
use super::session::State;

/// Until when a lane is ours. Renewed by the relay, asked for before each event.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    held: Arc<Mutex<Held>>,
    session: watch::Receiver<State>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    until: Instant,
    /// By the number of this session, if there was one.
    relay: Option<i32>,
}

impl Lease {
    pub(crate) fn new(until: Instant, relay: Option<i32>, session: watch::Receiver<State>) -> Self {
        Self { held: Arc::new(Mutex::new(Held { until, relay })), session }
    }

    pub(crate) fn renew(&self, until: Instant, relay: Option<i32>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Held { until, relay };
    }

    /// Not ours any more, or not known to be.
    pub(crate) fn end(&self) {
        self.renew(Instant::now(), None);
    }

    fn is_over(&self) -> bool {
        let Held { until, relay } = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Not left to the relay, which may be waiting for the database.
        Instant::now() >= until || (relay.is_some() && self.session.borrow().relay() != relay)
    }
}

/// The events of a lane, and whether more of them may wait.
pub(crate) struct Delivery {
    pub(crate) config: Arc<Config>,
    pub(crate) lane: Lane,
    pub(crate) batch: Batch,
    pub(crate) lease: Lease,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Delivery {
    /// Publishes one event after the other, each after the acknowledgement of the one before. Stops
    /// at the first failure, when the lease is over, when its turn is, and when the relay stops.
    pub(crate) async fn run(self) -> Outcome {
        let Self { config, lane, batch: Batch { events, is_all }, lease, stop } = self;
        let turn = Instant::now() + TURN;
        let mut acknowledged = Vec::with_capacity(events.len());
        for event in events {
            let id = event.id;
            if *stop.borrow() || lease.is_over() || (Instant::now() >= turn && !acknowledged.is_empty()) {
                let end = End::untried(&lane, Some(id));
                return Outcome { lane, acknowledged, end };
            }
            match publish(&config, event).await {
                Ok(()) => acknowledged.push(id),
                Err(error) => {
                    let end = failed(&config, &lane, id, &error);
                    return Outcome { lane, acknowledged, end };
                }
            }
        }
        Outcome { lane, acknowledged, end: if is_all { End::Done } else { End::More } }
    }
}

async fn publish(config: &Config, event: Event) -> Result<(), PublishError> {
    let published = AssertUnwindSafe(config.publisher.publish_boxed(event)).catch_unwind();
    match tokio::time::timeout(config.publish_timeout, published).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(PublishError::failed("the publisher panicked")),
        // A broker that stands still looks like this, too.
        Err(_) => Err(PublishError::unavailable("the publisher did not answer in time")),
    }
}

fn failed(config: &Config, lane: &Lane, event: Uuid, error: &PublishError) -> End {
    let before = lane.failed.filter(|failed| failed.event == event);
    let (attempts, failures) = before.map_or((0, 0), |before| (before.attempts, before.failures));
    let counts = u32::from(error.verdict != Verdict::Unavailable);
    let failed = Failed { event, attempts: attempts + counts, failures: failures.saturating_add(1) };
    let text = text_of(error);
    if error.verdict == Verdict::Rejected || (counts > 0 && failed.attempts >= config.max_attempts) {
        tracing::error!(
            event = %event, aggregate_type = lane.aggregate_type, attempts = failed.attempts, error = text,
            "an event is given up; it is a dead letter now, and its aggregate goes on"
        );
        return End::Dead { failed, error: text };
    }
    let mut backoff = config.backoff.after(failed.failures);
    if error.verdict == Verdict::Unavailable {
        backoff = backoff.min(LONGEST_OUTAGE_PAUSE);
    }
    let backoff = backoff.max(error.retry_after.unwrap_or_default()).min(LONGEST_PAUSE);
    tracing::warn!(
        event = %event, aggregate_type = lane.aggregate_type, attempts = failed.attempts,
        failures = failed.failures, ?backoff, error = text,
        "an event was not published; it is tried again"
    );
    End::Failed { failed, backoff, error: Some(text) }
}

/// What a table can store: no U+0000, and not a page of HTML.
fn text_of(error: &PublishError) -> String {
    error.to_string().replace('\0', "\u{fffd}").chars().take(LONGEST_ERROR).collect()
}

/// A lane with many events gives way to others after this time.
const TURN: Duration = Duration::from_secs(1);

/// While the broker is away, the backoff does not grow beyond this: when it is back, all is
/// delivered soon.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(30);

/// However long the other side has asked for.
const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);

const LONGEST_ERROR: usize = 2_000;
