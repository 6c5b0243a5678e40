//! Lines on which each connection breaks.

use unikprof_client::exit_code;
use unikprof_profile::recording::Completeness;

use crate::harness::{Client, Guest, Keyed, Proxy};

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
    // In the middle of the stacks: behind the preamble, the welcome and its mappings.
    proxy.limit_last(12_000);
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
    assert!(report.stdout.contains("incomplete"), "{}", report.stdout);

    // The guest still has all of it.
    let direct = guest.client();
    let all = direct.stop("all.unikprof").profile.sample_count();
    // The counts come last: of a guest with one vCPU there may be none yet.
    assert!(part < all, "{part} of {all}");
}
