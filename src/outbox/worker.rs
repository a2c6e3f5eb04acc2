//! What a relay has in hand: claims lanes, publishes them side by side, settles what has ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::delivery::{Delivery, Lease};
use super::lane::{self, Batch, Claimed, Lane, Name};
use super::outcome::{self, End, Outcome};
use super::relay::{Config, Relayed};
use super::session::{self, State};
use crate::error::sqlstate;

pub(crate) struct Worker {
    config: Arc<Config>,
    pub(super) deliveries: JoinSet<Outcome>,
    held: HashMap<Name, (Lane, Lease)>,
    pub(super) ended: Vec<Outcome>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) renew_at: Instant,
    /// The number of the session that shows others that we live, if there is one.
    relay: Option<i32>,
    session: watch::Receiver<State>,
    /// How many lanes that have failed before may be in hand. Fewer while they go on failing: an
    /// outage, or a mass of poison, is met with a few attempts and not with all there is.
    retries: usize,
}

/// What a claim has brought.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) fresh: usize,
    /// There is more than there was room for, or than one look takes.
    pub(super) is_behind: bool,
}

impl Worker {
    pub(crate) fn new(config: Arc<Config>, session: watch::Receiver<State>) -> Self {
        Self {
            session,
            retries: most_retries(&config),
            renew_at: Instant::now() + config.lease / 3,
            relay: None,
            config,
            deliveries: JoinSet::new(),
            held: HashMap::new(),
            ended: Vec::new(),
            stop: watch::Sender::new(false),
        }
    }

    /// Claims once, and waits until all of it is settled.
    pub(crate) async fn round(mut self) -> Result<Relayed, sqlx::Error> {
        self.claim().await?;
        let mut relayed = Relayed::default();
        loop {
            let renew_at = self.renew_at;
            tokio::select! {
                is_left = self.ended() => if !is_left { break },
                () = tokio::time::sleep_until(renew_at) => self.renew().await?,
            }
            relayed.add(self.count());
            self.settle().await?;
        }
        relayed.add(self.count());
        self.settle().await?;
        Ok(relayed)
    }

    pub(super) fn free(&self) -> usize {
        self.config.concurrency.saturating_sub(self.held.len())
    }

    /// How many lanes there is room for, and how many that have failed before.
    fn room(&self) -> (usize, usize) {
        let free = self.free();
        let retried = self.held.values().filter(|(lane, _)| lane.failed.is_some()).count();
        (free, self.retries.saturating_sub(retried).min(free))
    }

    pub(super) fn has_nothing(&self) -> bool {
        self.held.is_empty() && self.ended.is_empty()
    }

    pub(super) async fn claim(&mut self) -> Result<Taken, sqlx::Error> {
        let Claimed { lanes, is_one_gone, is_cut_off } = self.claim_lanes().await?;
        let mut fresh = self.take(lanes).await?;
        if is_one_gone {
            // Its lanes, at once. What has been claimed already neither waits for that nor is lost
            // over it.
            match self.succeed().await {
                Ok(more) => fresh += more,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "succeeding a relay that is gone failed; it is tried again");
                }
            }
        }
        Ok(Taken { fresh, is_behind: is_cut_off || self.free() == 0 })
    }

    async fn claim_lanes(&self) -> Result<Claimed, sqlx::Error> {
        let (lanes, retries) = self.room();
        let Config { database, lease, .. } = &*self.config;
        lane::claim(database, self.relay, *lease, lanes, retries).await
    }

    async fn succeed(&mut self) -> Result<usize, sqlx::Error> {
        if session::succeed(&self.config.database, self.relay).await? == 0 || self.free() == 0 {
            return Ok(0);
        }
        let more = self.claim_lanes().await?.lanes;
        self.take(more).await
    }

    /// Begins to deliver these. How many of them have not failed before?
    async fn take(&mut self, lanes: Vec<Lane>) -> Result<usize, sqlx::Error> {
        if lanes.is_empty() {
            return Ok(0);
        }
        let fresh = lanes.iter().filter(|lane| lane.failed.is_none()).count();
        match lane::read(&self.config.database, &lanes, self.config.batch).await {
            Ok(batches) => {
                for (lane, batch) in lanes.into_iter().zip(batches) {
                    self.deliver(lane, batch);
                }
                Ok(fresh)
            }
            Err(error) => {
                // Given back with the next settling, rather than at the lease's end.
                self.ended.extend(lanes.into_iter().map(|lane| {
                    let end = End::untried(&lane, None);
                    Outcome { lane, acknowledged: Vec::new(), end }
                }));
                Err(error)
            }
        }
    }

    fn deliver(&mut self, lane: Lane, batch: Batch) {
        let lease = Lease::new(lane.until, self.relay, self.session.clone());
        self.held.insert(lane.name(), (lane.clone(), lease.clone()));
        let (config, stop) = (Arc::clone(&self.config), self.stop.subscribe());
        self.deliveries.spawn(Delivery { config, lane, batch, lease, stop }.run());
    }

    /// Waits until a delivery has ended, and a little longer for others: they are settled together.
    /// `false`: there is none.
    pub(super) async fn ended(&mut self) -> bool {
        let Some(first) = self.deliveries.join_next().await else { return false };
        self.end(first);
        let soon = Instant::now() + SOON;
        while let Ok(Some(next)) = tokio::time::timeout_at(soon, self.deliveries.join_next()).await {
            self.end(next);
        }
        true
    }

    fn end(&mut self, ended: Result<Outcome, JoinError>) {
        match ended {
            Ok(outcome) => self.ended.push(outcome),
            // It catches what the publisher does; only a runtime that ends gets here.
            Err(error) => tracing::error!(%error, "a delivery ended without an outcome"),
        }
    }

    /// What has ended and is not settled.
    pub(super) fn count(&mut self) -> Relayed {
        let mut relayed = Relayed::default();
        for outcome in &self.ended {
            relayed.published += u64::try_from(outcome.acknowledged.len()).unwrap_or(u64::MAX);
            let was_retry = outcome.lane.failed.is_some();
            match &outcome.end {
                End::Dead { .. } => relayed.dead += 1,
                End::Failed { error: Some(_), .. } => {
                    relayed.failed += 1;
                    if was_retry && outcome.acknowledged.is_empty() {
                        self.retries = (self.retries / 2).max(1);
                    }
                }
                _ => {}
            }
            if was_retry && !outcome.acknowledged.is_empty() {
                self.retries = (self.retries * 2).min(most_retries(&self.config));
            }
        }
        relayed
    }

    /// Writes down what has ended. After how long is one of these lanes ready again, if any is?
    pub(super) async fn settle(&mut self) -> Result<Option<Duration>, sqlx::Error> {
        if self.ended.is_empty() {
            return Ok(None);
        }
        let ready = match outcome::settle(&self.config.database, &self.ended).await {
            Ok(ready) => ready,
            Err(error) if is_refusal(&error) => self.settle_each(&error).await?,
            Err(error) => return Err(error),
        };
        let mut again = (ready > 0).then_some(Duration::ZERO);
        for outcome in self.ended.drain(..) {
            self.held.remove(&outcome.lane.name());
            if let End::Failed { backoff, .. } = outcome.end {
                again = Some(again.map_or(backoff, |again| again.min(backoff)));
            }
        }
        Ok(again)
    }

    /// One that the database refuses must not hold up the others. It comes again when its lease ends.
    async fn settle_each(&self, error: &sqlx::Error) -> Result<i64, sqlx::Error> {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "settling events failed; settling one by one"
        );
        let mut ready = 0;
        for outcome in &self.ended {
            match outcome::settle(&self.config.database, std::slice::from_ref(outcome)).await {
                Ok(again) => ready += again,
                Err(error) if is_refusal(&error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the outcome of an event cannot be stored; it is published again"
                ),
                Err(error) => return Err(error),
            }
        }
        Ok(ready)
    }

    /// Keeps what is in hand.
    pub(super) async fn renew(&mut self) -> Result<(), sqlx::Error> {
        self.renew_at = Instant::now() + self.config.lease / 3;
        if self.held.is_empty() {
            return Ok(());
        }
        let lanes: Vec<Lane> = self.held.values().map(|(lane, _)| lane.clone()).collect();
        let until = Instant::now() + self.config.lease;
        let Config { database, lease, .. } = &*self.config;
        let ours = HashSet::<Name>::from_iter(lane::renew(database, self.relay, &lanes, *lease).await?);
        for (name, (_, lease)) in &self.held {
            if ours.contains(name) { lease.renew(until, self.relay) } else { lease.end() }
        }
        Ok(())
    }

    /// The session is there, or is gone. Without it others may have taken what is in hand: no event
    /// more of that, until it is known to be still ours.
    pub(super) async fn shown(&mut self, state: State) -> Result<(), sqlx::Error> {
        // It may have gone through states that were not shown, while we were busy.
        if std::mem::replace(&mut self.relay, state.relay()).is_some() {
            for (_, lease) in self.held.values() {
                lease.end();
            }
        }
        match state {
            State::Held(_) => self.renew().await,
            State::Connecting | State::Absent => Ok(()),
        }
    }
}

/// Whether the server has an objection to what it was given, which it will have again.
fn is_refusal(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| matches!(code.get(..2), Some("22" | "23" | "54")))
}

/// A quarter, so that three quarters are free for what has not failed.
fn most_retries(config: &Config) -> usize {
    (config.concurrency / 4).max(1)
}

/// Lanes that end at about the same time are settled and succeeded together.
pub(super) const SOON: Duration = Duration::from_millis(5);

impl Relayed {
    const fn add(&mut self, other: Self) {
        self.published += other.published;
        self.failed += other.failed;
        self.dead += other.dead;
    }
}
