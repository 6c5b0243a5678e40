//! Clients that come and go, several at once, and some that vanish.

use unikprof_client::exit_code;

use super::WORKING;
use crate::harness::{Client, Guest, Proxy, Then, counters_add_up, on, wait_until};

#[test]
fn fifty_recordings_leave_the_guest_as_it_was() {
    on(&WORKING, |lab| {
        let client = Guest::of(lab, "working").client();
        let mut last = 0;
        for _ in 1..=50 {
            let started = client.connect(&["start", "--json"]).expect_json();
            let number = started["recording"].as_u64().unwrap();
            assert!(last == 0 || number == last + 1, "{number} after {last}");
            last = number;
            // Also an empty recording is one.
            client.stop("run.unikprof");
        }
        let status = client.wait_for_status("the end of other sessions", |it| it["sessions"] == 1);
        assert_eq!(status["state"], "idle");
        assert_eq!(status["epochs"], 0, "{status:#}");
        client.record_samples(100, &[]);
    });
}

/// Behind the preamble, the welcome and its mappings, in the middle of the stacks.
pub(super) const IN_THE_MIDDLE: usize = 12_000;

/// Starts a recording and waits until it holds enough stacks to be cut in two.
pub(super) fn record_many_stacks(client: &Client) {
    client.must(&["start", "-F", "1997"]);
    client.wait_for_status("a large table", |status| {
        status["nodes_used"].as_u64() > Some(1_500)
    });
}

/// The line goes dead: no end of the connection reaches the guest until the case is over.
#[test]
fn a_client_that_vanishes_in_a_download_leaves_it_to_the_next() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let client = guest.client();
        record_many_stacks(&client);
        let proxy = Proxy::to(guest.address());
        proxy.limit_next(IN_THE_MIDDLE, Then::Stall);
        let unlucky = Client::of(proxy.address());
        let running = unlucky.begin(&["stop", "-o", "never.unikprof"]);
        proxy.wait_for_limit();
        running.kill();
        assert!(!unlucky.path("never.unikprof").exists());

        let status = client.status();
        assert_eq!(status["state"], "finished");
        assert_eq!(status["epochs"], 1, "{status:#}");
        let recording = client.stop("run.unikprof");
        assert_eq!(
            status["counters"]["recorded"],
            recording.profile.sample_count()
        );
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        assert_eq!(client.status()["epochs"], 0, "it was acknowledged");
        drop(proxy);
    });
}

#[test]
fn a_second_client_may_look_but_not_fetch_or_take_the_name() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let (first, second) = (guest.client(), guest.client());
        // It stays connected, and records for longer than the case takes.
        let recording = first.begin(&["record", "1h", "--name", "nightly", "-o", "a.unikprof"]);
        let status = second.wait_for_samples(50);
        assert_eq!(status["name"], "nightly");
        let info = second.connect(&["info", "--json"]).expect_json();
        assert_eq!(info["guest_name"], "working");
        let refused = second
            .connect(&["start", "--name", "nightly"])
            .expect_code(exit_code::REFUSED);
        assert!(refused.stderr.contains("`nightly`"), "{}", refused.stderr);
        let leased = second
            .connect(&["dump", "-o", "dump.unikprof"])
            .expect_code(exit_code::LEASED);
        assert!(leased.stderr.contains("`copy`"), "{}", leased.stderr);
        let status = second.status();
        assert_eq!(status["state"], "recording", "{status:#}");
        recording.interrupt();
        recording.finish().expect_success();
        assert_eq!(
            first.recording("a.unikprof").profile.recording().name,
            "nightly"
        );
    });
}

/// The one that never reads holds a socket, not the others.
#[test]
fn a_client_that_never_reads_is_in_nobodys_way() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let before = guest.client();
        record_many_stacks(&before);
        let proxy = Proxy::to(guest.address());
        // Nothing after the preamble is ever read.
        proxy.limit_next(16, Then::Stall);
        let silent = Client::of(proxy.address());
        let waiting = silent.begin(&["check"]);
        proxy.wait_for_limit();

        let others = [guest.client(), guest.client(), guest.client()];
        let running: Vec<_> = others
            .iter()
            .map(|client| client.begin(&["check", "--json"]))
            .collect();
        for client in running {
            assert_eq!(
                client.finish().expect_json()["recordings"][0]["state"],
                "recording"
            );
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
