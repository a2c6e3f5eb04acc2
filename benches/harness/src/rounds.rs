//! Sides that take turns.

use std::time::Duration;

use devpg::Server;
use futures_util::future::BoxFuture;

use crate::cpu::Cpu;
use crate::stats::percentile;

/// How many rounds, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    pub time: Duration,
    /// Only to see that the bench works.
    pub is_trial: bool,
}

impl Plan {
    pub fn from_env() -> Self {
        if !std::env::args().any(|argument| argument == "--bench") {
            return Self { rounds: 1, time: Duration::from_millis(100), is_trial: true };
        }
        let rounds = from_env("BENCH_ROUNDS").unwrap_or(15.0);
        let seconds = from_env("BENCH_SECONDS").unwrap_or(1.0);
        Self { rounds: rounds as usize, time: Duration::from_secs_f64(seconds), is_trial: false }
    }
}

fn from_env(name: &str) -> Option<f64> {
    let value = std::env::var(name).ok()?;
    let number = value.parse().ok().filter(|number: &f64| *number > 0.0);
    Some(number.unwrap_or_else(|| panic!("{name} is not a number above 0: {value}")))
}

/// What one side did in one round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    pub elapsed: Duration,
    /// How long each operation took, in microseconds, sorted.
    pub latencies: Vec<f64>,
    /// Microseconds of the processor for all of them, where the system says. A side that prepares its
    /// rounds says it by itself.
    pub cpu: Option<Cpu>,
}

impl Round {
    pub fn new(elapsed: Duration, mut latencies: Vec<f64>) -> Self {
        latencies.sort_by(f64::total_cmp);
        Self { elapsed, latencies, cpu: None }
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of the processor that one operation takes in this process.
    pub fn own_cpu(&self) -> f64 {
        self.cpu.map_or(f64::NAN, |cpu| cpu.own / self.latencies.len() as f64)
    }

    /// Microseconds of the processor that one operation takes in the database's server.
    pub fn server_cpu(&self) -> f64 {
        self.cpu.map_or(f64::NAN, |cpu| cpu.server / self.latencies.len() as f64)
    }

    /// Microseconds.
    pub fn p50(&self) -> f64 {
        percentile(&self.latencies, 0.5)
    }

    /// Microseconds.
    pub fn p99(&self) -> f64 {
        percentile(&self.latencies, 0.99)
    }
}

/// Runs for about the time it is given.
pub type Side<'a> = Box<dyn FnMut(Duration) -> BoxFuture<'a, Round> + 'a>;

/// One unmeasured round to warm up, then each round all sides, every time another one first.
pub async fn interleaved<const N: usize>(
    plan: Plan,
    server: &Server,
    mut sides: [Side<'_>; N],
) -> [Vec<Round>; N] {
    let mut done = std::array::from_fn(|_| Vec::with_capacity(plan.rounds));
    for side in &mut sides {
        side(plan.time / 2).await;
    }
    for round in 0..plan.rounds {
        for turn in 0..N {
            let side = (round + turn) % N;
            let before = Cpu::used(server);
            let mut round = sides[side](plan.time).await;
            if round.cpu.is_none() {
                round.cpu = before.and_then(|before| Some(Cpu::used(server)?.since(before)));
            }
            done[side].push(round);
        }
    }
    done
}
