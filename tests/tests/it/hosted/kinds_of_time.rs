//! Recordings of waiting: the guest sleeps nearly all the time.

use crate::harness::time::report;
use crate::harness::{Client, Guest};

/// The time in which the vCPU was blocked, by the platform's account.
fn blocked_ns(client: &Client) -> u64 {
    let report = report(client, "run.unikprof", &[]);
    report["vcpus"][0]["runstate"]["blocked_ns"].as_u64().unwrap()
}

/// On the wall's clock an idle guest is blocked, below the code that waits.
#[test]
#[ignore = "full: records a guest"]
fn waiting_has_its_share_of_the_time_on_the_wall() {
    let guest = Guest::start("idle");
    let client = guest.client();
    client.must(&["start", "--mode", "wall", "-F", "997"]);
    // A loaded machine wakes the guest late, and what others take is not blocked.
    client.wait_for_status("blocked time", |status| {
        status["counters"]["blocked"].as_u64() > Some(300)
    });
    let recording = client.stop("run.unikprof");
    let counters = recording.profile.counters();
    let blocked_ns = blocked_ns(&client);
    let periods = blocked_ns / recording.profile.recording().period_ns;
    assert!(counters.blocked.abs_diff(periods) <= periods / 20, "{periods} periods: {counters:?}");
    let blocked: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked") && stack.ends_with("[blocked]"))
        .map(|(_, samples)| samples)
        .sum();
    assert!(blocked * 10 > counters.blocked * 9, "{blocked}: {counters:?}");
}

/// Blocked time alone is measured, in ns; nothing is sampled.
#[test]
#[ignore = "full: records a guest"]
fn waits_are_measured_where_the_guest_waits() {
    let guest = Guest::start("idle");
    let client = guest.client();
    client.must(&["start", "--mode", "off-cpu"]);
    client.wait_for_status("blocked time", |status| {
        status["counters"]["blocked"].as_u64() > Some(300_000_000)
    });
    let recording = client.stop("run.unikprof");
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.recorded), (0, 0));
    assert!(counters.blocks > 1, "{counters:?}");
    let blocked_ns = blocked_ns(&client);
    assert!(
        counters.blocked.abs_diff(blocked_ns) <= blocked_ns / 20,
        "{blocked_ns} ns: {counters:?}"
    );
    let measured: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked"))
        .map(|(_, ns)| ns)
        .sum();
    assert!(measured * 10 > counters.blocked * 9, "{measured}: {counters:?}");
}

/// A vCPU without a thread is offline: on the wall's clock it lacks no samples. And no clock of a
/// thread that others keep from running goes back.
#[test]
#[ignore = "full: records a guest"]
fn what_is_offline_lacks_no_samples() {
    let guest = Guest::start("states");
    let client = guest.client();
    for _ in 0..5 {
        client.must(&["start", "--mode", "wall", "-F", "997"]);
        client.wait_for_status("samples", |status| {
            status["counters"]["recorded"].as_u64() > Some(100)
        });
        let recording = client.stop("run.unikprof");
        let vcpus = recording.profile.vcpus();
        let nobody = vcpus.iter().find(|vcpu| vcpu.vcpu == 3).unwrap();
        assert_eq!(nobody.counters.missing, Some(0), "{nobody:?}");
        assert_eq!(nobody.runstate.blocked_ns, Some(0), "{nobody:?}");
        let warnings = &recording.profile.recording().warnings;
        assert!(warnings.iter().all(|warning| !warning.contains("backwards")), "{warnings:?}");
    }
}
