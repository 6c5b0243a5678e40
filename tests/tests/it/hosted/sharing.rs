//! Several clients of one guest, one after the other and at once.

use crate::harness::{Guest, Proxy, RunningClient, Then};

#[test]
#[ignore = "full: records a guest"]
fn fifty_recordings_leave_the_guest_as_it_was() {
    let mut guest = Guest::start("shares");
    let client = guest.client();
    for round in 1..=50 {
        let started = client.connect(&["start", "--json"]).expect_json();
        assert_eq!(started["recording"], round);
        // Also an empty recording is one.
        client.must(&["stop", "-o", "run.unikprof", "--json"]);
        client.recording("run.unikprof");
    }
    // The agent hears of the last client's end a moment later.
    let status = client.wait_for_status("everybody to be gone", |status| status["sessions"] == 1);
    assert_eq!(status["state"], "idle");
    assert_eq!(status["epochs"], 0);
    // A client that the machine keeps from its processor is rightly timed out, and comes again.
    let mut of_peers = status["peers"].as_object().unwrap().iter();
    assert!(of_peers.all(|(kind, count)| kind == "timed_out" || *count == 0), "{status:#}");
    client.record_samples(100, &[]);
    guest.assert_alive();
}

/// Far more than a session's buffers and the sockets' first window, so that a client that is killed
/// was in the middle.
const ENOUGH_NODES: u64 = 3_000;

/// Behind the preamble, the welcome and its mappings, in the middle of the stacks.
const IN_THE_MIDDLE: usize = 12_000;

#[test]
#[ignore = "full: records a guest"]
fn a_client_killed_in_a_download_leaves_it_to_the_next() {
    let guest = Guest::start("deep");
    let client = guest.client();
    client.must(&["start", "-F", "4999"]);
    client.wait_for_status("a large table", |status| {
        status["nodes_used"].as_u64() > Some(ENOUGH_NODES)
    });

    let proxy = Proxy::to(guest.address());
    proxy.limit_next(IN_THE_MIDDLE, Then::Stall);
    let unlucky = crate::harness::Client::of(proxy.address());
    let running: RunningClient = unlucky.begin(&["stop", "-o", "never.unikprof"]);
    proxy.wait_for_limit();
    running.kill();
    drop(proxy);
    assert!(
        !unlucky.path("never.unikprof").exists(),
        "half a recording has the name of a whole one"
    );

    let status =
        client.wait_for_status("the killed client to be gone", |status| status["sessions"] == 1);
    assert_eq!(status["state"], "finished");
    assert_eq!(status["epochs"], 1);
    let recording = client.stop("all.unikprof");
    assert_eq!(status["counters"]["recorded"], recording.profile.sample_count());
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
    assert_eq!(client.status()["epochs"], 0, "it was acknowledged");
}
