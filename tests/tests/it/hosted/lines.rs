//! Lines that break, and clients that are killed.

use unikprof_client::exit_code;
use unikprof_client::recording::Completeness;
use unikprof_proto::code::message_type;

use crate::harness::{Client, Guest, Keyed, Proxy, Then, wait_until};

/// In the middle of the stacks: behind the preamble, the welcome and its mappings.
const IN_THE_MIDDLE: usize = 12_000;

#[test]
#[ignore = "full: records a guest"]
fn a_line_cut_while_recording_is_taken_up_again() {
    let guest = Guest::start("shares");
    let proxy = Proxy::to(guest.address());
    // A client that asks how it goes knows that it goes: a start is not repeated.
    proxy.limit_next_at(message_type::CHECK, Then::Cut);
    let client = Client::of(proxy.address());
    let running = client.begin(&["record", "2s", "-o", "run.unikprof"]);
    proxy.wait_for_limit();
    let finished = running.finish().expect_success();
    assert!(proxy.connections() >= 2);
    assert!(finished.stderr.contains("connection"), "the user is told: {}", finished.stderr);
    let recording = client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    let elapsed_ns = recording.profile.recording().elapsed_ns;
    assert!(elapsed_ns >= 1_900_000_000, "the guest went on: {elapsed_ns}");
}

/// On a slow line each has announced its caller table before the other has sent all of its own.
#[test]
#[ignore = "full: records a guest"]
fn clients_that_start_together_over_a_slow_line_both_start() {
    for round in 0..5 {
        let guest = Guest::start("shares");
        let started = ["first", "second"].map(|name| {
            let proxy = Proxy::to(guest.address());
            proxy.limit_next_at(message_type::TABLE_END, Then::Hold);
            let running = Client::of(proxy.address()).begin(&["start", "--name", name]);
            proxy.wait_for_limit();
            (proxy, running)
        });
        started.iter().for_each(|(proxy, _)| proxy.release());
        for (_proxy, running) in started {
            let finished = running.finish().expect_success();
            assert!(!finished.stderr.contains("caller table"), "{round}: {}", finished.stderr);
        }
        assert_eq!(guest.client().recording_names().len(), 2);
    }
}

/// Records until there are so many stack nodes.
fn record_stacks(client: &Client, least: u64) {
    client.must(&["start", "-F", "4999"]);
    client.wait_for_status("a large table", |status| status["nodes_used"].as_u64() > Some(least));
}

/// Cut again and again: each connection brings some more, and nothing comes twice.
#[test]
fn a_download_over_connections_of_3000_bytes_is_whole() {
    let (open, keyed) = (Guest::start("deep"), Keyed::start("deep"));
    for (guest, near) in [(&open, open.client()), (&keyed.guest, keyed.owner())] {
        record_stacks(&near, 600);
        let proxy = Proxy::to(guest.address());
        proxy.limit_each(3_000);
        let client = near.at(proxy.address());
        client.must(&["stop", "-o", "all.unikprof", "--retry", "1s"]);
        assert!(proxy.connections() > 4);
        let recording = client.recording("all.unikprof");
        assert_eq!(
            recording.profile.recording().warnings,
            Vec::<String>::new(),
            "samples add up, so none is missing or counted twice"
        );
        let counters = recording.profile.counters();
        assert_eq!(recording.profile.sample_count(), counters.recorded);
    }
}

#[test]
fn what_arrived_before_the_line_broke_for_good_is_kept_and_said() {
    let guest = Guest::start("deep");
    record_stacks(&guest.client(), 3_000);
    let proxy = Proxy::to(guest.address());
    proxy.limit_next(IN_THE_MIDDLE, Then::CutForGood);
    let client = Client::of(proxy.address());
    let finished = client
        .connect(&["stop", "-o", "part.unikprof", "-o", "part.folded", "--retry", "500ms"])
        .expect_code(exit_code::INCOMPLETE);
    let told = finished.stderr.matches("the recording is incomplete").count();
    assert_eq!(told, 1, "{}", finished.stderr);
    let recording = client.recording("part.unikprof");
    assert!(
        matches!(&recording.completeness, Completeness::Incomplete(reason) if !reason.is_empty())
    );
    let part = recording.profile.sample_count();
    let report = client.report("part.unikprof", &[]).expect_success();
    assert!(report.stderr.contains("incomplete"), "{}", report.stderr);

    // The guest still has all of it.
    let direct = guest.client();
    let all = direct.stop("all.unikprof").profile.sample_count();
    // The counts come last: of a guest with one vCPU there may be none yet.
    assert!(part < all, "{part} of {all}");
}

/// The guest ends the recording by itself; whoever comes next fetches it.
#[test]
#[ignore = "full: records a guest"]
fn a_client_killed_while_recording_loses_nothing() {
    let guest = Guest::start("shares");
    let client = guest.client();
    // Again if the guest had no processor in that second.
    wait_until("samples", || {
        let proxy = Proxy::to(guest.address());
        // It gets no further before it is killed, however long that takes.
        proxy.limit_next_at(message_type::CHECK, Then::Stall);
        let unlucky = Client::of(proxy.address());
        let running = unlucky.begin(&["record", "1s", "-o", "run.unikprof"]);
        proxy.wait_for_limit();
        running.kill();
        drop(proxy);
        let status = client.wait_for_status("its end", |status| status["state"] == "finished");
        let samples = client.stop("all.unikprof").profile.sample_count();
        assert_eq!(status["counters"]["recorded"], samples);
        (samples > 0).then_some(())
    });
    wait_until("the dead client's session to be gone", || {
        (client.status()["sessions"] == 1).then_some(())
    });
}
