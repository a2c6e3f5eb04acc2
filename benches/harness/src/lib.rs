//! What the benches share.
//!
//! Every figure is a ratio of two sides that ran in the same process, against the same server, in
//! short rounds that took turns: a machine that is slow for a while is slow for both. It is printed
//! as a table, and kept as JSON and as a plot under `benches/results/`.
//!
//! | variable | |
//! | --- | --- |
//! | `BENCH_ROUNDS` | how many rounds; 15 unless set. Results of fewer are printed, and not kept. |
//! | `BENCH_SECONDS` | how long one side runs in a round; 1 unless set |
//!
//! Without `--bench` among the arguments, as under `cargo test --benches`, one short round is run, to
//! see that the bench works; nothing is kept.

pub mod bank;
mod cpu;
mod load;
mod machine;
mod network;
mod plot;
mod report;
mod rounds;
mod server;
mod stats;
mod steady;

pub use cpu::Cpu;
pub use load::{Clients, post};
pub use network::Network;
pub use report::{Aim, Report};
pub use rounds::{Plan, Round, Side, interleaved};
pub use server::{durable, pool, serve};
pub use stats::{Spread, percentile};
pub use steady::Steady;

/// Runs a bench on as many threads as the machine has cores.
pub fn run(bench: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(bench);
}
