//! What clients want, how they insist on it, and what they have been told.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Answer, Manners, attempt, request};
use crate::random::Random;
use crate::service::HANDLER_FAULTS;

/// One business intent, and its history.
#[derive(Debug)]
pub(crate) struct Intent {
    pub(crate) number: i64,
    /// Its business answer is a refusal.
    pub(crate) refused: bool,
    /// Final answers: the first, and those to later attempts.
    pub(crate) answers: Vec<Answer>,
    /// Answers that no attempt may get.
    pub(crate) wrong: Vec<Answer>,
}

impl Intent {
    pub(crate) fn key(&self) -> String {
        format!("intent-{}", self.number)
    }

    pub(crate) fn request(&self, fault: &str) -> Vec<u8> {
        let body = format!(r#"{{"intent":{},"refused":{}}}"#, self.number, self.refused);
        request(&self.key(), &body, fault)
    }

    /// Files an answer; whether it was final.
    pub(crate) fn hears(&mut self, answer: Option<Answer>) -> bool {
        let Some(answer) = answer else { return false };
        match answer.status {
            201 if !self.refused => self.answers.push(answer),
            402 if self.refused => self.answers.push(answer),
            // In flight; whatever has failed; the rest of a request that the client did not finish.
            408 | 409 | 500 | 503 => return false,
            _ => self.wrong.push(answer),
        }
        true
    }
}

/// What the clients have done together.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) attempts: AtomicUsize,
    pub(crate) hang_ups: AtomicUsize,
    pub(crate) silences: AtomicUsize,
    pub(crate) handler_faults: AtomicUsize,
    pub(crate) conflicts: AtomicUsize,
    /// By what they are.
    pub(crate) errors: Mutex<BTreeMap<String, usize>>,
    pub(crate) replays: AtomicUsize,
    /// Without an answer until all was calm, and then settled by one retry.
    pub(crate) settled_late: AtomicUsize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, of) in [
            (&self.attempts, "attempts"),
            (&self.conflicts, "told to wait"),
            (&self.silences, "without an answer"),
            (&self.replays, "replays"),
            (&self.hang_ups, "hang-ups"),
            (&self.handler_faults, "handlers with a fault"),
        ] {
            write!(f, "{} {of}, ", count.load(Ordering::Relaxed))?;
        }
        write!(f, "{:?}, ", self.errors.lock().unwrap())?;
        write!(f, "{} settled by one retry at the end", self.settled_late.load(Ordering::Relaxed))
    }
}

/// All clients.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) addresses: Arc<[SocketAddr]>,
    pub(crate) until: Instant,
    next: Arc<AtomicI64>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) intents: Arc<Mutex<Vec<Intent>>>,
}

impl Clients {
    pub(crate) fn of(addresses: Vec<SocketAddr>, until: Instant) -> Self {
        Self {
            addresses: addresses.into(),
            until,
            next: Arc::default(),
            counts: Arc::default(),
            intents: Arc::default(),
        }
    }

    /// One client: one intent after the other, until the time is over.
    pub(crate) async fn run(self, mut random: Random) {
        while Instant::now() < self.until {
            let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
            let refused = random.percent(15);
            let mut intent = Intent { number, refused, answers: Vec::new(), wrong: Vec::new() };
            let insists = self.insist(&mut intent, &mut random);
            // What has no answer by then never gets one.
            let _ = tokio::time::timeout_at(self.until.into(), insists).await;
            self.intents.lock().unwrap().push(intent);
        }
    }

    async fn insist(&self, intent: &mut Intent, random: &mut Random) {
        let mut pause = 5;
        loop {
            if random.percent(20) {
                // The same at two services at once.
                let (mut one, mut two) = (random.fork(), random.fork());
                let (a, b) = tokio::join!(self.try_once(intent, &mut one), self.try_once(intent, &mut two));
                let (a, b) = (intent.hears(a), intent.hears(b));
                if a || b {
                    break;
                }
            } else {
                let answer = self.try_once(intent, random).await;
                if intent.hears(answer) {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(random.below(pause))).await;
            pause = (pause * 2).min(200);
        }
        // Some ask again although they know.
        if random.percent(30) {
            let answer = self.try_once(intent, random).await;
            intent.hears(answer);
        }
    }

    async fn try_once(&self, intent: &Intent, random: &mut Random) -> Option<Answer> {
        let fault = if random.percent(12) { random.one_of(&HANDLER_FAULTS) } else { "" };
        // It keeps a place for seconds.
        let fault = if fault == "long" && random.percent(90) { "sleep" } else { fault };
        let request = intent.request(fault);
        let manners = match random.below(100) {
            0..4 => Manners::HangsUpAt(usize::try_from(random.below(request.len() as u64)).unwrap()),
            4..10 => Manners::Leaves(Duration::from_millis(random.below(60))),
            _ => Manners::Patient,
        };
        let counts = &self.counts;
        counts.attempts.fetch_add(1, Ordering::Relaxed);
        counts.handler_faults.fetch_add(usize::from(!fault.is_empty()), Ordering::Relaxed);
        counts.hang_ups.fetch_add(usize::from(manners != Manners::Patient), Ordering::Relaxed);
        let address = random.one_of(&self.addresses);
        let answer = attempt(address, &request, manners, PATIENCE).await;
        let count = match answer {
            None if manners == Manners::Patient => &counts.silences,
            Some(ref answer) if answer.status == 409 => &counts.conflicts,
            Some(answer) if answer.status >= 500 => {
                // The handler's own have no type.
                let kind = answer.body.rsplit(':').next().unwrap_or_default().trim_end_matches(['"', '}']);
                *counts.errors.lock().unwrap().entry(format!("{} {kind}", answer.status)).or_default() += 1;
                return Some(answer);
            }
            Some(ref answer) if answer.replayed => &counts.replays,
            _ => return answer,
        };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
