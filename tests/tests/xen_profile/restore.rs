//! A save and a restore of a guest with two vCPUs, whose timers the agent arms, while a recording runs.

use std::time::Duration;

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest_with_vcpus;

use crate::harness::{Boot, Guest, SOON, counters_add_up, on};

const SAVED: Boot = Boot {
    name: "saved",
    config: || {
        Ok(LabConfig {
            // The image of the guest's 64 MiB lies on dom0's RAM disk.
            extra_dom0_memory_mb: 128,
            ..LabConfig::with_guest(profiled_guest_with_vcpus(
                "saved",
                2,
                "load=50 ticks=owned",
            )?)
        })
    },
};

const RESTORED: Duration = Duration::from_secs(180);

#[test]
fn a_recording_goes_on_after_a_save_and_restore() {
    on(&SAVED, |lab| {
        let guest = Guest::of(lab, "saved");
        let client = guest.client();
        client.must(&["start"]);
        let before = client.wait_for_samples(300);
        guest.dom0("xl save saved /tmp/image");
        lab.restore("saved", "/tmp/image", &[], RESTORED).unwrap();
        lab.wait_for_console("saved", "resumed", SOON).unwrap();

        let saved = before["counters"]["recorded"].as_u64().unwrap();
        let after = client.wait_for_samples(saved + 600);
        assert_eq!(after["recording"], before["recording"]);
        client.must(&["stop", "-o", "run.unikprof"]);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert!(counters_add_up(&report) >= saved + 600);
        let warnings = report["warnings"].as_array().unwrap();
        let is_gap = |text: &str| text.contains("suspended and resumed");
        assert!(
            warnings.iter().any(|text| is_gap(text.as_str().unwrap())),
            "{warnings:#?}"
        );
        // The same in what happened when, once.
        let told = client.must(&["events", "--json"]);
        let resumed = told.stdout.matches("\"kind\":\"resumed\"").count();
        assert_eq!(resumed, 1, "{}", told.stdout);
        // Times go on from where they stood: no vCPU ran for longer than the recording lasted.
        let vcpu = &report["vcpus"][0];
        let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
        let running = vcpu["runstate"]["running_ns"].as_u64().unwrap();
        assert!(running <= elapsed, "{vcpu:#}");
        assert!(running > elapsed / 5, "{vcpu:#}");

        // Once more, with nothing running meanwhile.
        client.record_samples(200, &[]);
    });
}
