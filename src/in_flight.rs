//! What this process is executing, and how much at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch};

use crate::flight::{Flight, STORM_WINDOW};
use crate::rejection::RejectionKind;
use crate::scope::ScopeHash;

/// How many requests may hold a connection at once.
///
/// One less than the pool's size by default: a handler that asks the pool for a second connection
/// then finds one, where all of them at once would wait for each other for ever.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    places: Arc<Semaphore>,
    wait: Duration,
}

impl Capacity {
    pub(crate) fn new(places: usize, wait: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS))), wait }
    }

    pub(crate) const fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Waits for a place, for a bounded time.
    pub(crate) async fn enter(&self) -> Result<OwnedSemaphorePermit, RejectionKind> {
        let place = Arc::clone(&self.places).acquire_owned();
        match tokio::time::timeout(self.wait, place).await {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(RejectionKind::TooManyInFlight),
        }
    }
}

/// The keys that requests of this process are about, and which of them are being executed here.
///
/// Only a short cut: the answer "in flight" is always safe, and the database would give the same
/// one. But a storm of duplicates does not reach the database, needs no connection, and a waiter is
/// woken when the execution ends.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<ScopeHash, Key>>>);

#[derive(Default)]
struct Key {
    executing: Arc<watch::Sender<bool>>,
    asking: Arc<Asking>,
    flight: Option<Arc<Flight>>,
    visits: usize,
}

/// One of those who wait here for another process's execution asks for all.
#[derive(Default)]
struct Asking {
    turn: Arc<tokio::sync::Mutex<()>>,
    told: watch::Sender<()>,
}

impl InFlight {
    pub(crate) fn visit(&self, scope: ScopeHash) -> Visit {
        let mut keys = self.lock();
        let key = keys.entry(scope).or_default();
        key.visits += 1;
        Visit {
            registry: self.clone(),
            scope,
            executing: Arc::clone(&key.executing),
            asking: Arc::clone(&key.asking),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ScopeHash, Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's interest in a key.
pub(crate) struct Visit {
    registry: InFlight,
    scope: ScopeHash,
    executing: Arc<watch::Sender<bool>>,
    asking: Arc<Asking>,
}

impl Visit {
    pub(crate) fn is_executing(&self) -> bool {
        *self.executing.borrow()
    }

    /// Until this process begins to execute the key.
    pub(crate) async fn begun(&self) {
        self.changed_to(true).await;
    }

    /// Until this process does not execute the key any more.
    pub(crate) async fn ended(&self) {
        self.changed_to(false).await;
    }

    async fn changed_to(&self, state: bool) {
        let mut executing = self.executing.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = executing.wait_for(|now| *now == state).await;
    }

    /// The claims of the key since it was last executed here: what they were told before that is not
    /// true any more.
    pub(crate) fn flight(&self) -> Arc<Flight> {
        let mut keys = self.registry.lock();
        Arc::clone(keys.entry(self.scope).or_default().flight.get_or_insert_default())
    }

    /// Keeps in mind that the key is in flight elsewhere, also when all have gone who were told.
    pub(crate) fn linger(&self) {
        let visit = self.registry.visit(self.scope);
        tokio::spawn(async move {
            // As long as it counts: a storm that pauses for a moment is still that storm.
            tokio::time::sleep(STORM_WINDOW).await;
            drop(visit);
        });
    }

    /// The turn to ask for all, unless somebody here has it.
    pub(crate) fn first_turn(&self) -> Option<Turn> {
        Arc::clone(&self.asking.turn).try_lock_owned().ok().map(Turn)
    }

    /// Until it is this visit's turn to ask for all, or there is something to be known: `None`.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        let mut told = self.asking.told.subscribe();
        tokio::select! {
            biased;
            _ = told.changed() => None,
            () = self.begun() => None,
            turn = Arc::clone(&self.asking.turn).lock_owned() => Some(Turn(turn)),
        }
    }

    /// What the database was asked for is there.
    pub(crate) fn tell(&self) {
        self.asking.told.send_replace(());
    }

    /// Marks the key as being executed here, until the returned value is dropped.
    pub(crate) fn execute(&self) -> Executing {
        self.executing.send_replace(true);
        Executing(self.registry.visit(self.scope))
    }
}

/// Ends when it is dropped; the next one's turn begins.
pub(crate) struct Turn(#[expect(dead_code, reason = "held, not used")] OwnedMutexGuard<()>);

impl Drop for Visit {
    fn drop(&mut self) {
        let mut keys = self.registry.lock();
        if let Some(key) = keys.get_mut(&self.scope) {
            key.visits -= 1;
            if key.visits == 0 {
                keys.remove(&self.scope);
            }
        }
    }
}

pub(crate) struct Executing(Visit);

impl Drop for Executing {
    fn drop(&mut self) {
        if let Some(key) = self.0.registry.lock().get_mut(&self.0.scope) {
            key.flight = None;
        }
        self.0.executing.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdempotencyKey;
    use crate::claim::Claim;
    use crate::flight::{IN_FLIGHT_HOLDS, Joined, STORM, Shared};
    use crate::scope::Scope;

    #[test]
    fn nothing_is_left_when_the_last_visitor_goes() {
        let registry = InFlight::default();
        let key = IdempotencyKey::new("k").unwrap();
        let scope = Scope { tenant: "t".into(), operation: "o".into(), key }.hash();
        let first = registry.visit(scope);
        let second = registry.visit(scope);
        let executing = first.execute();
        drop(first);
        assert!(second.is_executing());
        drop(executing);
        assert!(!second.is_executing());
        drop(second);
        assert!(registry.lock().is_empty());
    }

    async fn leads(visit: &Visit) -> bool {
        let flight = visit.flight();
        let Joined::Lead(lead) = flight.join().await else { return false };
        lead.tell(&Ok(Claim::InFlight));
        visit.linger();
        true
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_that_pauses_is_still_counted_and_is_forgotten_a_second_later() {
        let registry = InFlight::default();
        let key = IdempotencyKey::new("k").unwrap();
        let scope = Scope { tenant: "t".into(), operation: "o".into(), key }.hash();
        let visit = registry.visit(scope);
        for _ in 0..STORM {
            assert!(leads(&visit).await);
        }
        drop(visit);
        // Nobody is there, for longer than "in flight" holds.
        tokio::time::sleep(IN_FLIGHT_HOLDS * 2).await;
        let visit = registry.visit(scope);
        assert!(leads(&visit).await);
        assert!(!leads(&visit).await, "each pause costs the database as many claims as a new storm");
        drop(visit);
        tokio::time::sleep(STORM_WINDOW * 2).await;
        assert!(registry.lock().is_empty());
    }

    /// Else the client that has its answer would be told that it is not there.
    #[tokio::test]
    async fn what_the_database_said_before_an_execution_here_is_not_said_after_it() {
        let registry = InFlight::default();
        let key = IdempotencyKey::new("k").unwrap();
        let visit = registry.visit(Scope { tenant: "t".into(), operation: "o".into(), key }.hash());
        for _ in 0..STORM {
            let flight = visit.flight();
            let Joined::Lead(lead) = flight.join().await else { panic!("it is said too early") };
            lead.tell(&Ok(Claim::InFlight));
        }
        assert!(matches!(visit.flight().join().await, Joined::Told(Shared::InFlight)));
        drop(visit.execute());
        assert!(matches!(visit.flight().join().await, Joined::Lead(_)));
    }
}
