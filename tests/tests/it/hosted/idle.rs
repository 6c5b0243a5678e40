//! An idle guest stays asleep, whatever the rate.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Client, Guest, wait_until};

/// The length of the guests' naps.
const NAP: Duration = Duration::from_millis(200);

/// The most switches of a nap; an agent that wakes the guest for its samples causes hundreds.
const MOST: u64 = 3;

/// The number of times that the guest's thread gave up its processor while it was recorded, and the
/// number of naps it had time for, with one more for its ends. Each is a switch away from the
/// thread, and may have one more for a timer that was armed before it.
fn switches(client: &Client, thread: &str, rate: &str) -> (u64, u64) {
    // The time is taken outside of the counts: however long this thread stands still, it holds all
    // of their naps.
    let started = Instant::now();
    let before = voluntary_switches(thread);
    client.record("1s", &["-F", rate]);
    let switches = voluntary_switches(thread) - before;
    let naps = started.elapsed().as_millis() / NAP.as_millis() + 1;
    (switches, naps as u64)
}

fn voluntary_switches(thread: &str) -> u64 {
    let status = fs::read_to_string(Path::new("/proc").join(thread).join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
#[ignore = "full: records a guest"]
fn blocking_wakes_no_more_often_at_a_hundred_times_the_rate() {
    let guest = Guest::start("idle");
    let client = guest.client();
    let thread = guest.told("thread ");
    for rate in ["97", "9973"] {
        let (switches, naps) = switches(&client, &thread, rate);
        assert!(switches <= MOST * naps, "{switches} wake-ups at {rate} Hz, for {naps} naps");
    }
}

/// Guards the test above: it would see these wake-ups if blocking did not end the timer.
#[test]
#[ignore = "full: records a guest"]
fn sleeping_outside_of_block_is_seen_to_wake() {
    let guest = Guest::start("asleep");
    let client = guest.client();
    let thread = guest.told("thread ");
    // Again where others have the processor: then it wakes less often.
    wait_until("more wake-ups than the test above takes", || {
        let (switches, naps) = switches(&client, &thread, "9973");
        (switches > MOST * naps).then_some(())
    });
}
