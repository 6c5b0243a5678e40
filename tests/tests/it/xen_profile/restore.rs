//! A guest with two vCPUs, whose timers the agent arms, and with known allocations: a recording
//! goes on over a save and a restore, and what each vCPU allocates and the other one frees is
//! recorded.

use std::time::Duration;

use unikprof_proto::code::trace_flag;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest_with_vcpus;

use crate::xen_profile::harness::{Boot, Client, Guest, SOON, counters_add_up, on};
use crate::xen_profile::memory::{Held, Site, assert_books};
use crate::xen_profile::tracing::{Tracing, assert_rounds};

const SAVED: Boot = Boot {
    name: "saved",
    config: || {
        Ok(LabConfig {
            // The image of the guest's 64 MiB lies on dom0's RAM disk.
            extra_dom0_memory_mb: 128,
            ..LabConfig::with_guest(profiled_guest_with_vcpus(
                "saved",
                2,
                "allocations=50 ticks=owned trace=yes",
            )?)
        })
    },
};

const RESTORED: Duration = Duration::from_secs(600);

/// And so does a trace.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_recording_goes_on_after_a_save_and_restore() {
    on(&SAVED, |lab| {
        let guest = Guest::of(lab, "saved");
        let client = guest.client();
        client.must(&["start"]);
        let before = client.wait_for_samples(300);
        // Calls in the ring would displace everything else within seconds.
        let tracing = Tracing::begin(&guest, trace_flag::COUNT);
        guest.dom0("xl save saved /tmp/image");
        lab.restore("saved", "/tmp/image", &[], RESTORED).unwrap();
        lab.wait_for_console("saved", "resumed", SOON).unwrap();
        assert_resumed_once(&client);

        tracing.assert_goes_on(&guest);
        let saved = before["counters"]["recorded"].as_u64().unwrap();
        let after = client.wait_for_samples(saved + 600);
        assert_eq!(after["recording"], before["recording"]);
        client.must(&["stop", "-o", "run.unikprof"]);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert!(counters_add_up(&report) >= saved + 600);
        let warnings = report["warnings"].as_array().unwrap();
        let is_gap = |text: &str| text.contains("suspended and resumed");
        assert!(warnings.iter().any(|text| is_gap(text.as_str().unwrap())), "{warnings:#?}");
        // Times go on from where they stood: no vCPU ran for longer than the recording lasted.
        let vcpu = &report["vcpus"][0];
        let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
        let running = vcpu["runstate"]["running_ns"].as_u64().unwrap();
        assert!(running <= elapsed, "{vcpu:#}");
        let period = report["recording"]["period_ns"].as_u64().unwrap();
        let ticks = vcpu["counters"]["ticks"].as_u64().unwrap();
        // A tick stands for a period of it, before the save as after the restore.
        assert!(running * 11 / 10 + 20 * period >= ticks * period, "{vcpu:#}");

        // Once more, with nothing running meanwhile.
        client.record_samples(200, &[]);
    });
}

/// Asserts that the ring has the restore, which must have been a moment ago: the ring keeps its
/// newest records only.
pub(crate) fn assert_resumed_once(client: &Client) {
    let told = client.must(&["events", "--json"]);
    let resumed = told.stdout.matches("\"kind\":\"resumed\"").count();
    assert_eq!(resumed, 1, "{}", told.stdout);
}

/// The functions of the guest's `allocations`. The first vCPU runs the main loop; the other one
/// frees what it requests.
const SITES: [Site; 5] = [
    Site { function: "request", sizes: &[700], calls: 4.0, held: Held::AtMost(QUEUE), ..ENTRY },
    Site {
        function: "reply",
        below: "allocate_for_ever",
        sizes: &[300],
        counter: "replies",
        calls: 1.0,
        held: Held::AtMost(QUEUE),
    },
    Site { function: "list", sizes: &[256, 512, 1_024], held: Held::AtMost(0.0), ..ENTRY },
    ENTRY,
    Site { function: "leak", sizes: &[1_000], counter: "leaks", held: Held::All, ..ENTRY },
];

const ENTRY: Site = Site {
    function: "entry",
    below: "kernel_main",
    sizes: &[2_000],
    counter: "rounds",
    calls: 1.0,
    held: Held::Newest(200.0),
};

/// The number of allocations that wait for the other vCPU to free them.
const QUEUE: f64 = 128.0;

#[test]
#[ignore = "full: boots a real Xen"]
fn allocations_of_two_vcpus_are_those_of_the_guests_books() {
    on(&SAVED, |lab| {
        assert_books(&Guest::of(lab, "saved").client(), &SITES, "leak");
    });
}

/// The same load on the other vCPU as well, while samples interrupt it.
#[test]
#[ignore = "full: boots a real Xen"]
fn traced_calls_of_two_vcpus_are_exact() {
    on(&SAVED, |lab| assert_rounds(&Guest::of(lab, "saved")));
}
