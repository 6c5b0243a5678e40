//! Threads as vCPUs: coming, going, and what the signal handler leaves of theirs.

use crate::harness::Guest;
use crate::harness::time::sum;

/// A signal that is under way when its thread leaves, a timer that outlives its thread, or a stack
/// that is gone: each would end this guest.
#[test]
#[ignore = "full: records a guest"]
fn threads_come_and_go_while_they_are_sampled() {
    let mut guest = Guest::start("threads");
    let client = guest.client();
    client.must(&["start", "-F", "4999"]);
    guest.forget_lines();
    client.wait_for_samples(4_000);
    // However slow threads are here.
    for _ in 0..3 {
        guest.told("registered 100 more");
    }
    let recording = client.stop("run.unikprof");
    let profile = &recording.profile;
    assert_eq!(profile.vcpus().len(), 4);
    for vcpu in profile.vcpus() {
        let counters = &vcpu.counters;
        assert!(counters.recorded > 0, "{vcpu:?}");
        assert_eq!(counters.check(), Ok(()), "{vcpu:?}");
    }
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    for name in ["lasting_work", "passing_work"] {
        assert!(sum(&report, name, "self") > 50, "{name}: {report:#}");
    }
    guest.assert_alive();
    let ended = guest.stop();
    assert!(ended.success(), "{ended}");
}

#[test]
#[ignore = "full: records a guest"]
fn the_signal_handler_keeps_errno() {
    let mut guest = Guest::start("errno");
    let client = guest.client();
    client.record_samples(1_000, &["--interval", "100us"]);
    let ended = guest.stop();
    assert!(ended.success(), "{ended}");
    let told = guest.told("errno kept in ");
    let spoilt = told.split(' ').nth(2).unwrap();
    let spoilt: u64 = spoilt.parse().unwrap();
    assert!(spoilt > 1_000, "the handler had nothing to put back: {told}");
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
