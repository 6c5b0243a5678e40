//! Networks that fail: what arrives is complete and right, or the client says that it is not.

use serde_json::Value;
use unikprof_profile::recording::Completeness;

use super::WORKING;
use crate::xen_profile::harness::{Client, Guest, Proxy, client_at, counters_add_up, on};

/// An outage that dom0 makes lasts for longer where a machine is busy.
const RETRY: &str = "10m";

/// Behind the preamble, the welcome and its mappings, in the middle of the stacks.
const IN_THE_MIDDLE: usize = 12_000;

/// Starts a recording and waits until it holds enough stacks to be cut in two.
fn record_many_stacks(client: &Client) {
    client.must(&["start", "-F", "1997"]);
    client.wait_for_status("a large table", |status| status["nodes_used"].as_u64() > Some(1_500));
}

/// Asserts that the folder's recording is all that the guest has counted.
fn is_all(client: &Client, guest: &Guest<'_>) {
    let recording = client.recording("all.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    let counters = recording.profile.counters();
    assert_eq!(recording.profile.sample_count(), counters.recorded);
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
    let report = client.report("all.unikprof", &["--json"]).expect_json();
    counters_add_up(&report);
    let status = guest.client().status();
    assert_eq!(status["epochs"], 0, "it was acknowledged: {status:#}");
}

/// The guest's cable is pulled, in dom0, while a client downloads, and plugged in again.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_download_outlives_an_outage_of_the_guests_network() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        record_many_stacks(&guest.client());
        let proxy = Proxy::to(guest.address());
        proxy.stall_next(IN_THE_MIDDLE);
        let client = client_at(proxy.address());
        let running = client.begin(&["stop", "-o", "all.unikprof", "--retry", RETRY]);
        proxy.wait_for_stall();
        guest.dom0("ip link set vif$ID.0 down");
        // The client's next connection finds nobody at first.
        proxy.cut();
        guest.dom0("sleep 2; ip link set vif$ID.0 up");
        running.finish().expect_success();
        is_all(&client, &guest);
    });
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_recording_outlives_an_outage_of_the_guests_network() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let (client, watcher) = (guest.client(), guest.client());
        // It goes on until the network is back, however slow the machine is.
        let running = client.begin(&["record", "1h", "-o", "all.unikprof", "--retry", RETRY]);
        let before = watcher.wait_for_samples(1);
        guest.dom0("ip link set vif$ID.0 down; sleep 1; ip link set vif$ID.0 up");
        let recorded = |status: &Value| status["counters"]["recorded"].as_u64();
        watcher.wait_for_status("samples since the outage", |status| {
            recorded(status) > recorded(&before)
        });
        running.interrupt();
        running.finish().expect_success();
        is_all(&client, &guest);
    });
}
