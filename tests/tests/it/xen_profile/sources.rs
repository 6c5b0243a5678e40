//! The same guest with either owner of the timer.

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::{Boot, Guest, counters_add_up, on};

const SOURCES: [&str; 2] = ["host", "owned"];

const BOTH_SOURCES: Boot = Boot {
    name: "both sources",
    config: || {
        let guest = |source| profiled_guest(source, &format!("load=40 ticks={source}"));
        Ok(LabConfig {
            guests: SOURCES.into_iter().map(guest).collect::<Result<_, _>>()?,
            ..LabConfig::default()
        })
    },
};

#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_is_sampled_whoever_owns_its_timer() {
    on(&BOTH_SOURCES, |lab| {
        for source in SOURCES {
            let guest = Guest::of(lab, source);
            let client = guest.client();
            client.record_samples(1_000, &[]);
            let report = client.report("run.unikprof", &["--json"]).expect_json();
            counters_add_up(&report);
            let vcpu = &report["vcpus"][0];
            let running = vcpu["runstate"]["running_ns"].as_u64().unwrap();
            let period = report["recording"]["period_ns"].as_u64().unwrap();
            let ticks = report["counters"]["ticks"].as_u64().unwrap();
            // The emulator is slow to deliver; what is missing is told as missing.
            let missing = report["counters"]["missing"].as_i64().unwrap();
            let due = i64::try_from(running / period).unwrap();
            let told = i64::try_from(ticks).unwrap() + missing;
            assert!(due.abs_diff(told) <= 2, "{source}: {due} due, {told} told");
            // The work that was interrupted went on: the load has served on and on.
            let before = guest.statistics();
            crate::xen_profile::harness::wait_until("more requests", || {
                (guest.statistics().since(&before, "vcpu0.requests") > 50).then_some(())
            });
        }
    });
}
