//! Threads as vCPUs: coming, going, and what the signal handler leaves of theirs.

use crate::harness::Guest;

/// A signal that is under way when its thread leaves, a timer that outlives its thread, or a stack
/// that is gone: each would end this guest.
#[test]
fn threads_come_and_go_while_they_are_sampled() {
    let mut guest = Guest::start("threads");
    let client = guest.client();
    client.connect(&["start", "-F", "4999"]).expect_success();
    guest.forget_lines();
    client.wait_for_status("4000 samples", |status| {
        status["counters"]["recorded"].as_u64() >= Some(4_000)
    });
    // However slow threads are here.
    for _ in 0..3 {
        guest.told("registered 100 more");
    }
    client
        .connect(&["stop", "-o", "run.unikprof"])
        .expect_success();
    let recording = client.recording("run.unikprof");
    let profile = &recording.profile;
    assert_eq!(profile.vcpus().len(), 4);
    for vcpu in profile.vcpus() {
        let counters = &vcpu.counters;
        assert!(counters.recorded > 0, "{vcpu:?}");
        let parts = [
            counters.recorded,
            counters.overflow,
            counters.lost,
            counters.masked,
            counters.idle,
        ];
        assert_eq!(counters.ticks, parts.iter().sum::<u64>(), "{vcpu:?}");
    }
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let functions = report["functions"].as_array().unwrap();
    for name in ["lasting_work", "passing_work"] {
        let is_seen = functions
            .iter()
            .any(|f| f["name"].as_str().unwrap().ends_with(name) && f["self"].as_u64() > Some(50));
        assert!(is_seen, "{name} is not in {functions:#?}");
    }
    guest.assert_alive();
    let ended = guest.stop();
    assert!(ended.success(), "{ended}");
}

#[test]
fn the_signal_handler_keeps_errno() {
    let mut guest = Guest::start("errno");
    let client = guest.client();
    client.record_samples(1_000, &["--interval", "100us"]);
    let ended = guest.stop();
    assert!(ended.success(), "{ended}");
    let told = guest.told("errno kept in ");
    let spoilt = told.split(' ').nth(2).unwrap();
    let spoilt: u64 = spoilt.parse().unwrap();
    assert!(
        spoilt > 1_000,
        "the handler had nothing to put back: {told}"
    );
}

#[test]
fn a_second_registration_is_refused_and_leaving_makes_room() {
    let guest = Guest::start("registration");
    assert_eq!(guest.told("again: "), "this thread is registered already");
    assert_eq!(
        guest.told("too many: "),
        "all 1 vCPUs are in use; raise Config::vcpus or end a registered thread"
    );
    assert_eq!(guest.told("after the first has left: "), "vCPU 0");
}
