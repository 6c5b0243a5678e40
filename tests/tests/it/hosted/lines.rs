//! Lines that break, and users who do not wait.

use unikprof_client::exit_code;
use unikprof_client::recording::Completeness;
use unikprof_proto::code::message_type;

use crate::harness::{Client, Guest, Proxy, Then, wait_until};

/// In the middle of the stacks: behind the preamble, the welcome and its mappings.
const IN_THE_MIDDLE: usize = 12_000;

#[test]
#[ignore = "full: records a guest"]
fn ctrl_c_keeps_what_was_sampled() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let running = client.begin(&["record", "1h", "-o", "run.unikprof", "--json"]);
    let watcher = guest.client();
    watcher.wait_for_samples(100);
    running.interrupt();
    let told = running.finish().expect_json();
    assert_eq!(told["complete"], true);
    let recording = client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert!(recording.profile.sample_count() >= 100);
    assert_eq!(watcher.status()["state"], "idle", "the guest is left as it was found");
}

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

/// Starts a recording of many stacks and answers its guest, once there are enough.
fn guest_with_many_stacks() -> Guest {
    let guest = Guest::start("deep");
    let client = guest.client();
    client.must(&["start", "-F", "4999"]);
    client.wait_for_status("a large table", |status| status["nodes_used"].as_u64() > Some(3_000));
    guest
}

/// Cut again and again: each connection brings some more, and nothing comes twice.
#[test]
fn a_download_cut_in_the_middle_goes_on_from_there() {
    let guest = guest_with_many_stacks();
    let proxy = Proxy::to(guest.address());
    proxy.limit_next(IN_THE_MIDDLE, Then::Cut);
    let client = Client::of(proxy.address());
    client.must(&["stop", "-o", "all.unikprof"]);
    proxy.wait_for_limit();
    assert_eq!(proxy.connections(), 2);
    let recording = client.recording("all.unikprof");
    assert_eq!(
        recording.profile.recording().warnings,
        Vec::<String>::new(),
        "samples add up, so none is missing or counted twice"
    );
    let counters = recording.profile.counters();
    assert_eq!(recording.profile.sample_count(), counters.recorded);
}

#[test]
fn what_arrived_before_the_line_broke_for_good_is_kept_and_said() {
    let guest = guest_with_many_stacks();
    let proxy = Proxy::to(guest.address());
    proxy.limit_next(IN_THE_MIDDLE, Then::CutForGood);
    let client = Client::of(proxy.address());
    let finished = client
        .connect(&["stop", "-o", "part.unikprof", "--retry", "500ms"])
        .expect_code(exit_code::INCOMPLETE);
    assert!(finished.stderr.contains("incomplete"), "{}", finished.stderr);
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
