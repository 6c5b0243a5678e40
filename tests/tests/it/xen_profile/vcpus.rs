//! Guests of one, two and four vCPUs: each is sampled by its own timer.

use std::collections::HashMap;

use unikprof_profile::profile::VcpuStats;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest_with_vcpus;

use crate::xen_profile::harness::{Boot, Client, Guest, counters_add_up, on};

const COUNTS: [u32; 3] = [1, 2, 4];

/// All their vCPUs share the one emulated processor that dom0 leaves.
const SEVERAL_VCPUS: Boot = Boot {
    name: "several vCPUs",
    config: || {
        let guest = |count| profiled_guest_with_vcpus(&name(count), count, "load=60");
        Ok(LabConfig {
            guests: COUNTS.into_iter().map(guest).collect::<Result<_, _>>()?,
            processors: Some(2),
            ..LabConfig::default()
        })
    },
};

fn name(vcpus: u32) -> String {
    format!("vcpus-{vcpus}")
}

/// Fewer would not tell a vCPU that is sampled from one that ticked while the recording started.
const LEAST: u64 = 20;

#[test]
#[ignore = "full: boots a real Xen"]
fn every_vcpu_has_samples_of_its_own() {
    on(&SEVERAL_VCPUS, |lab| {
        for count in COUNTS {
            assert_each_is_sampled(&Guest::of(lab, &name(count)).client(), count);
        }
    });
}

/// Checks that each of a guest's `count` vCPUs, which work, has samples of its own.
pub(crate) fn assert_each_is_sampled(client: &Client, count: u32) {
    // They share one processor, and it may be a slow one: then for longer.
    let recordings = [2 + 2 * count, 30, 120].into_iter();
    let mut recordings = recordings.map(|seconds| client.record(&format!("{seconds}s"), &[]));
    let is_sampled = |vcpu: &VcpuStats| vcpu.counters.recorded >= LEAST;
    let recording = recordings.find(|recording| recording.profile.vcpus().iter().all(is_sampled));
    let recording = recording
        .unwrap_or_else(|| panic!("not each of {count} vCPUs has {LEAST} samples of two minutes"));
    let mut samples: HashMap<u32, u64> = HashMap::new();
    for sample in recording.profile.samples() {
        *samples.entry(sample.vcpu).or_default() += sample.count;
    }
    let vcpus = recording.profile.vcpus();
    assert_eq!(vcpus.len(), count as usize);
    for (number, vcpu) in (0..).zip(vcpus) {
        assert_eq!(vcpu.vcpu, number);
        assert_eq!(samples.get(&number), Some(&vcpu.counters.recorded));
    }
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    counters_add_up(&report);
}
