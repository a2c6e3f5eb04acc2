//! Processor time, which a busy machine distorts less than it does time.

use std::fs;

use devpg::Server;

/// What this process and a database's server have used since they began, in microseconds. Linux only.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    pub own: f64,
    pub server: f64,
}

impl Cpu {
    /// `None` where the system does not say.
    pub fn used(server: &Server) -> Option<Self> {
        let own = ticks(&fs::read_to_string("/proc/self/stat").ok()?)?.used;
        let postmaster = u64::from(server.pid()?);
        let mut used = 0;
        for process in fs::read_dir("/proc").ok()?.flatten() {
            let Ok(stat) = fs::read_to_string(process.path().join("stat")) else { continue };
            let Some(ticks) = ticks(&stat) else { continue };
            if ticks.parent == postmaster {
                used += ticks.used;
            }
        }
        Some(Self { own: own as f64 * TICK, server: used as f64 * TICK })
    }

    pub fn since(self, earlier: Self) -> Self {
        Self { own: self.own - earlier.own, server: self.server - earlier.server }
    }
}

struct Ticks {
    parent: u64,
    used: u64,
}

/// After the name, which is in brackets: state, parent, and as the 12th and 13th the times in user
/// and in system mode.
fn ticks(stat: &str) -> Option<Ticks> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Ticks { parent: number(1)?, used: number(11)? + number(12)? })
}

/// The clock of these counts is 100 Hz on every Linux.
const TICK: f64 = 10_000.0;
