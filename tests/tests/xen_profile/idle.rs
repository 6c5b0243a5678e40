//! Guests that sleep, with both owners of the timer.

use std::thread;
use std::time::Duration;

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::harness::{Boot, Guest, counters_add_up, on};

const SOURCES: [&str; 2] = ["host", "owned"];
const RATES: [&str; 2] = ["99", "1997"];
const ASLEEP: Duration = Duration::from_secs(10);

const SLEEPING: Boot = Boot {
    name: "sleeping",
    config: || {
        let mut guests = Vec::new();
        for source in SOURCES {
            for rate in RATES {
                guests.push(profiled_guest(
                    &name(source, rate),
                    &format!("ticks={source}"),
                )?);
            }
        }
        Ok(LabConfig {
            guests,
            ..LabConfig::default()
        })
    },
};

fn name(source: &str, rate: &str) -> String {
    format!("{source}-{rate}")
}

/// Ten seconds at 1,997 Hz would be twenty thousand; a client that comes and goes is some tens.
#[test]
fn sampling_does_not_wake_a_sleeping_guest() {
    on(&SLEEPING, |lab| {
        for source in SOURCES {
            let guests = RATES.map(|rate| {
                let name = name(source, rate);
                let guest = Guest::of(lab, &name);
                guest.client().must(&["start", "-F", rate]);
                let before = guest.statistics();
                (name, before)
            });
            // Not a wait for something to happen: the time in which nothing may.
            thread::sleep(ASLEEP);
            let [slow, fast] = guests.map(|(name, before)| {
                let guest = Guest::of_recording(lab, &name);
                let after = guest.statistics();
                assert!(
                    after.since(&before, "now_ns") >= ASLEEP.as_nanos().try_into().unwrap(),
                    "the guest's clock goes on"
                );
                let client = guest.client();
                client.must(&["stop", "-o", "run.unikprof"]);
                let report = client.report("run.unikprof", &["--json"]).expect_json();
                counters_add_up(&report);
                let blocked = &report["vcpus"][0]["runstate"]["blocked_ns"];
                let elapsed = report["recording"]["elapsed_ns"].as_u64().unwrap();
                assert!(blocked.as_u64().unwrap() > elapsed / 2, "{report:#}");
                ["vcpu0.wakes", "vcpu0.timer_upcalls", "vcpu0.timer_calls"]
                    .map(|count| after.since(&before, count))
            });
            for (slow, fast) in slow.into_iter().zip(fast) {
                assert!(
                    fast <= slow + 100,
                    "ticks={source}: {slow} at 99 Hz, {fast} at 1,997 Hz"
                );
                assert!(slow < 300, "ticks={source}: {slow} in ten seconds of sleep");
            }
        }
    });
}
