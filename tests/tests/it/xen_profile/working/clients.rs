//! Clients that come and go, several at once, and some that vanish.

use super::WORKING;
use crate::xen_profile::harness::{
    Client, Guest, Proxy, Then, client_at, counters_add_up, on, wait_until,
};

/// Behind the preamble, the welcome and its mappings, in the middle of the stacks.
pub(super) const IN_THE_MIDDLE: usize = 12_000;

/// Starts a recording and waits until it holds enough stacks to be cut in two.
pub(super) fn record_many_stacks(client: &Client) {
    client.must(&["start", "-F", "1997"]);
    client.wait_for_status("a large table", |status| status["nodes_used"].as_u64() > Some(1_500));
}

/// The line goes dead: no end of the connection reaches the guest until the case is over.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_client_that_vanishes_in_a_download_leaves_it_to_the_next() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let client = guest.client();
        record_many_stacks(&client);
        let proxy = Proxy::to(guest.address());
        proxy.limit_next(IN_THE_MIDDLE, Then::Stall);
        let unlucky = client_at(proxy.address());
        let running = unlucky.begin(&["stop", "-o", "never.unikprof"]);
        proxy.wait_for_limit();
        running.kill();
        assert!(!unlucky.path("never.unikprof").exists());

        let status = client.status();
        assert_eq!(status["state"], "finished");
        assert_eq!(status["epochs"], 1, "{status:#}");
        let recording = client.stop("run.unikprof");
        assert_eq!(status["counters"]["recorded"], recording.profile.sample_count());
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        assert_eq!(client.status()["epochs"], 0, "it was acknowledged");
        drop(proxy);
    });
}

/// The one that never reads holds a socket, not the others.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_client_that_never_reads_is_in_nobodys_way() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let before = guest.client();
        record_many_stacks(&before);
        let proxy = Proxy::to(guest.address());
        // Nothing after the preamble is ever read.
        proxy.limit_next(16, Then::Stall);
        let silent = client_at(proxy.address());
        let waiting = silent.begin(&["check"]);
        proxy.wait_for_limit();

        let others = [guest.client(), guest.client(), guest.client()];
        let running: Vec<_> =
            others.iter().map(|client| client.begin(&["check", "--json"])).collect();
        for client in running {
            assert_eq!(client.finish().expect_json()["recordings"][0]["state"], "recording");
        }
        others[0].must(&["stop", "-o", "run.unikprof"]);
        let report = others[0].report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        waiting.kill();
        drop(proxy);
        wait_until("the silent client's session to end", || {
            (guest.client().status()["sessions"] == 1).then_some(())
        });
    });
}
