//! A guest that never polls again: when its owner needs the profile.

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::harness::{Boot, Guest, SOON, counters_add_up, on};

const STUCK: Boot = Boot {
    name: "stuck",
    config: || {
        Ok(LabConfig::with_guest(profiled_guest(
            "stuck",
            "stuck=loop",
        )?))
    },
};

#[test]
fn a_guest_stuck_in_a_loop_is_reached_and_recorded() {
    on(
        &STUCK,
        "a_guest_stuck_in_a_loop_is_reached_and_recorded",
        |lab| {
            lab.wait_for_console("stuck", "stuck in a loop", SOON)
                .unwrap();
            let guest = Guest::of(lab, "stuck");
            let client = guest.client();
            let before = guest.statistics();
            client.record_samples(500, &[]);
            let after = guest.statistics();
            assert_eq!(
                after.since(&before, "vcpu0.blocks"),
                0,
                "its loop never sleeps"
            );
            assert!(after.since(&before, "rescues") > 0, "the upcall has served");
            let report = client.report("run.unikprof", &["--json"]).expect_json();
            counters_add_up(&report);
            let first = &report["functions"][0];
            let name = first["name"].as_str().unwrap();
            assert!(name.ends_with("stuck_in_a_loop"), "{first:#}");
            // Of what came in time: a sample that the emulator held up has a leaf of its own.
            let count = |name: &str| report["counters"][name].as_u64().unwrap();
            let in_time = count("recorded") - count("late");
            let in_loop = first["self"].as_u64().unwrap();
            assert!(in_loop * 2 > in_time, "{in_time} in time: {first:#}");
            // In time as in samples: next to nothing but the loop and the agent's own work.
            let own = report["functions"].as_array().unwrap().iter();
            let own: u64 = own
                .filter(|f| f["name"] != *name && f["name"] != "[unikprof agent]")
                .map(|f| f["self"].as_u64().unwrap())
                .sum();
            let elsewhere = own.saturating_sub(count("late"));
            assert!(
                elsewhere * 5 <= in_time,
                "{elsewhere} of {in_time} elsewhere: {report:#}"
            );
        },
    );
}
