//! A relay that goes on: when it looks, settles, renews, and stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::lane;
use super::relay::Config;
use super::session::Session;
use super::worker::{SOON, Worker};

/// Runs until `shutdown` is ready.
pub(crate) async fn run(config: Arc<Config>, shutdown: impl Future<Output = ()>) {
    tokio::pin!(shutdown);
    let mut nudges = super::nudges();
    let mut clock = Clock::new(&config);
    let mut session = Session::start(&config);
    let mut worker = Worker::new(Arc::clone(&config), session.state());
    let mut is_behind = false;
    // Ends with this.
    let mut reconciling = JoinSet::new();
    loop {
        if Instant::now() >= clock.reconcile_at {
            // Beside the deliveries: it reads all that waits.
            let database = config.database.clone();
            reconciling.spawn(async move {
                logged("looking for events without a lane", lane::reconcile(&database).await);
            });
            clock.reconcile_at = Instant::now() + RECONCILE_INTERVAL;
        }
        while reconciling.try_join_next().is_some() {}
        if Instant::now() >= worker.renew_at {
            logged("renewing leases", worker.renew().await);
        }
        if !worker.ended.is_empty() && Instant::now() >= clock.settle_at {
            let relayed = worker.count();
            match logged("settling events", worker.settle().await) {
                Some(again) => {
                    if relayed.published + relayed.dead > 0 {
                        clock.pause = FIRST_PAUSE;
                    }
                    // At once if there is room for many, else a little later, when there may be.
                    let room = worker.free() * 2 >= config.concurrency;
                    // So it is if the last claim has left something.
                    let again = if is_behind && room { Some(Duration::ZERO) } else { again };
                    clock.look_within(again.map(|again| if room { again } else { again.max(SOON) }));
                }
                None => clock.settle_at = Instant::now() + clock.longer(),
            }
        }
        // What is not settled cannot be, for the time being: no more of it.
        let has_room = worker.ended.is_empty() && worker.free() > 0 && !session.is_connecting();
        if has_room && Instant::now() >= clock.look_at {
            let claimed = logged("claiming events", worker.claim().await).unwrap_or_default();
            if claimed.fresh > 0 {
                clock.pause = FIRST_PAUSE;
            }
            is_behind = claimed.is_behind;
            clock.look_at = Instant::now() + if is_behind { SOON } else { clock.longer() };
        }
        let keep_at = worker.renew_at.min(clock.reconcile_at);
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            _ = worker.ended(), if !worker.deliveries.is_empty() => {}
            state = session.changed() => {
                logged("renewing leases", worker.shown(state).await);
            }
            Ok(()) = nudges.changed() => clock.nudged(),
            () = tokio::time::sleep_until(clock.settle_at), if !worker.ended.is_empty() => {}
            () = tokio::time::sleep_until(clock.look_at), if has_room => {}
            () = tokio::time::sleep_until(keep_at) => {}
        }
    }
    if finish(worker).await {
        session.end().await;
    }
    // Else it just ends, for a successor to see.
}

/// Finishes the events that are being published, and gives the rest back. Has that been possible?
async fn finish(mut worker: Worker) -> bool {
    worker.stop.send_replace(true);
    let mut tries = 0;
    loop {
        let renew_at = worker.renew_at;
        let is_left = tokio::select! {
            is_left = worker.ended() => is_left,
            () = tokio::time::sleep_until(renew_at) => {
                logged("renewing leases", worker.renew().await);
                true
            }
        };
        if logged("settling events", worker.settle().await).is_none() {
            tries += 1;
            tokio::time::sleep(FIRST_PAUSE).await;
        }
        if !is_left && (worker.ended.is_empty() || tries >= TRIES_AT_THE_END) {
            return worker.has_nothing();
        }
    }
}

/// When what is due.
struct Clock {
    look_at: Instant,
    settle_at: Instant,
    reconcile_at: Instant,
    pause: Duration,
    longest_pause: Duration,
}

impl Clock {
    fn new(config: &Config) -> Self {
        let now = Instant::now();
        Self {
            look_at: now,
            settle_at: now,
            reconcile_at: now,
            pause: FIRST_PAUSE.min(config.poll_interval),
            longest_pause: config.poll_interval,
        }
    }

    /// The pause, and the next one is longer.
    fn longer(&mut self) -> Duration {
        let pause = self.pause.min(self.longest_pause);
        self.pause = (pause * 2).min(self.longest_pause);
        pause
    }

    fn look_within(&mut self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.look_at = self.look_at.min(Instant::now() + wait);
        }
    }

    fn nudged(&mut self) {
        self.pause = FIRST_PAUSE;
        self.look_at = Instant::now();
    }
}

fn logged<T>(doing: &str, result: Result<T, sqlx::Error>) -> Option<T> {
    result
        .inspect_err(|error| {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, "{doing} failed; it is tried again");
        })
        .ok()
}

/// From the first look that has found nothing it doubles, up to the poll interval.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const RECONCILE_INTERVAL: Duration = Duration::from_secs(300);

/// A database that does not answer is not waited for. What was acknowledged comes again.
const TRIES_AT_THE_END: u32 = 3;
