//! One claim at a time for all who want the same key, and what it came to.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::Instant;

use crate::claim::{Claim, Record, Verdict};
use crate::rejection::RejectionKind;

/// The claims of one key by this process, one after the other. Those who want the key meanwhile share
/// what the one under way comes to.
///
/// A storm of duplicates would else cost the database a claim each, and other keys their places.
#[derive(Default)]
pub(crate) struct Flight {
    lead: Mutex<()>,
    landed: watch::Sender<Option<Landed>>,
}

#[derive(Clone)]
struct Landed {
    what: Shared,
    at: Instant,
    storm: Storm,
}

/// How often the database was asked lately.
#[derive(Clone, Copy)]
struct Storm {
    since: Instant,
    claims: u32,
}

/// What holds for everybody who wants the key. "In flight" and a failure do so at the time they were
/// found out: who comes while they are being told, and could know better, is told to come again.
#[derive(Clone)]
pub(crate) enum Shared {
    /// Somebody is executing, here or elsewhere.
    InFlight,
    /// There is a record. Each compares its fingerprint with its own.
    Settled(Record),
    /// The claim failed, and why.
    Refused(RejectionKind),
}

pub(crate) enum Joined<'a> {
    /// This one claims, for all.
    Lead(Lead<'a>),
    Told(Shared),
}

/// The right to claim. The next one's begins when it is dropped, told or not: one that is cancelled
/// hands over.
pub(crate) struct Lead<'a> {
    flight: &'a Flight,
    _turn: MutexGuard<'a, ()>,
}

impl Flight {
    /// The lead, if nobody has it, and unless it is known what the database would say; else what the
    /// leader is told, or the lead if it is not.
    pub(crate) async fn join(&self) -> Joined<'_> {
        let mut landed = self.landed.subscribe();
        tokio::select! {
            biased;
            // Cannot fail: `self` holds the sender.
            _ = landed.changed() => {
                let told = landed.borrow().as_ref().map_or(Shared::InFlight, |landed| landed.what.clone());
                Joined::Told(told)
            }
            turn = self.lead.lock() => {
                if self.was_in_flight() {
                    return Joined::Told(Shared::InFlight);
                }
                Joined::Lead(Lead { flight: self, _turn: turn })
            }
        }
    }

    /// Whether the database has said that the key is in flight, just now and again and again. Who is
    /// one of a few duplicates asks, and sees at once that it is settled.
    fn was_in_flight(&self) -> bool {
        let landed = self.landed.borrow();
        landed.as_ref().is_some_and(|landed| {
            matches!(landed.what, Shared::InFlight)
                && landed.at.elapsed() < IN_FLIGHT_HOLDS
                && landed.storm.claims >= STORM
        })
    }
}

impl Lead<'_> {
    /// Shares what a claim came to with all who have joined so far.
    pub(crate) fn tell(self, claim: &Result<Claim, RejectionKind>) {
        let what = match claim {
            // Of the others, whoever comes first: this one is about to execute.
            Ok(Claim::Won(_) | Claim::InFlight) => Shared::InFlight,
            // Only the claimant's own request was refused: another may take the key over.
            Ok(Claim::Settled(record)) if record.verdict == Verdict::Lapsed => return,
            Ok(Claim::Settled(record)) => Shared::Settled(record.clone()),
            // A place is waited for by each as long as its own layer says.
            Err(RejectionKind::TooManyInFlight) => return,
            Err(kind) => Shared::Refused(*kind),
        };
        let at = Instant::now();
        self.flight.landed.send_modify(|landed| {
            let before = landed.as_ref().map(|landed| landed.storm);
            let storm = match before.filter(|storm| at - storm.since < STORM_WINDOW) {
                Some(storm) => Storm { claims: storm.claims + 1, ..storm },
                None => Storm { since: at, claims: 1 },
            };
            *landed = Some(Landed { what, at, storm });
        });
    }
}

/// In a storm, "in flight" is not asked again for so long: a duplicate is told to come back in a second
/// anyway.
pub(crate) const IN_FLIGHT_HOLDS: Duration = Duration::from_millis(50);

/// So many claims of one key in the window are a storm: more than clients make that wait for a second
/// before they come again. With the time above, a key costs some thirty claims a
/// second at most.
pub(crate) const STORM: u32 = 10;

/// For how long claims are counted together.
pub(crate) const STORM_WINDOW: Duration = Duration::from_secs(1);
