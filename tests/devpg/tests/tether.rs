//! Other processes end with the program that has started them.

mod common;

use common::{Running, Scratch, alive, child, eventually, kill, run};

/// The program with its two processes.
fn start(what: &str) -> (Running, u32, u32) {
    let scratch = Scratch::new();
    let running = run(&mut child(&scratch, &[what]));
    let [first, second] = ["first", "second"].map(|name| running.said(name).parse().expect("a number"));
    assert!(alive(first) && alive(second));
    (running, first, second)
}

#[test]
fn a_tethered_process_ends_when_the_program_is_killed() {
    let (mut running, first, second) = start("tether");
    running.signal("KILL");
    eventually("the process is gone", || !alive(first));
    kill("KILL", &second.to_string());
}

#[test]
fn a_tethered_group_ends_when_the_program_returns() {
    let (mut running, first, second) = start("tether-group");
    drop(running.process.stdin.take());
    running.process.wait().expect("wait");
    eventually("both are gone", || !alive(first) && !alive(second));
}

#[test]
fn a_process_whose_tether_was_dropped_goes_on() {
    let (mut running, first, second) = start("tether-cut");
    running.signal("KILL");
    // A tethered one that was started later is gone by now.
    let (mut later, tethered, other) = start("tether-group");
    later.signal("KILL");
    eventually("the later one is gone", || !alive(tethered) && !alive(other));
    assert!(alive(first) && alive(second));
    kill("KILL", &format!("-{first}"));
}
