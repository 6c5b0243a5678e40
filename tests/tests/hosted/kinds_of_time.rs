//! Recordings of waiting: the guest sleeps nearly all the time.

use crate::harness::Guest;

/// On the wall's clock an idle guest is blocked, below the code that waits.
#[test]
fn waiting_has_its_share_of_the_time_on_the_wall() {
    let guest = Guest::start("idle");
    let client = guest.client();
    let recording = client.record("1s", &["--mode", "wall", "-F", "997"]);
    let counters = recording.profile.counters();
    // Of a thousand; a loaded machine wakes the guest late, and what others take is not blocked.
    assert!(counters.blocked > 300, "{counters:?}");
    let blocked: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked") && stack.ends_with("[blocked]"))
        .map(|(_, samples)| samples)
        .sum();
    assert!(
        blocked * 10 > counters.blocked * 9,
        "{blocked}: {counters:?}"
    );
}

/// Blocked time alone is measured, in ns; nothing is sampled.
#[test]
fn waits_are_measured_where_the_guest_waits() {
    let guest = Guest::start("idle");
    let client = guest.client();
    let recording = client.record("1s", &["--mode", "off-cpu"]);
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.recorded), (0, 0));
    assert!(counters.blocks > 1, "{counters:?}");
    assert!(counters.blocked > 300_000_000, "{counters:?}");
    let measured: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked"))
        .map(|(_, ns)| ns)
        .sum();
    assert!(
        measured * 10 > counters.blocked * 9,
        "{measured}: {counters:?}"
    );
}
