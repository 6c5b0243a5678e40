//! Guests that sleep, with both owners of the timer.

use std::thread;
use std::time::Duration;

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::{Boot, Guest, counters_add_up, on, wait_until};

const SOURCES: [&str; 2] = ["host", "owned"];
const RATES: [&str; 2] = ["99", "1997"];
const ASLEEP: Duration = Duration::from_secs(10);

const SLEEPING: Boot = Boot {
    name: "sleeping",
    config: || {
        let mut guests = Vec::new();
        for source in SOURCES {
            for rate in RATES {
                guests.push(profiled_guest(&name(source, rate), &format!("ticks={source}"))?);
            }
        }
        Ok(LabConfig { guests, ..LabConfig::default() })
    },
};

fn name(source: &str, rate: &str) -> String {
    format!("{source}-{rate}")
}

/// Ten seconds at 1,997 Hz would be twenty thousand; a client that comes and goes is some tens.
/// Where a busy machine makes them more, or lets nobody sleep, another nap is quiet; a guest that
/// is woken for its ticks has none.
#[test]
#[ignore = "full: boots a real Xen"]
fn sampling_does_not_wake_a_sleeping_guest() {
    on(&SLEEPING, |lab| {
        for source in SOURCES {
            for rate in RATES {
                assert_sleeps(&Guest::of(lab, &name(source, rate)), rate);
            }
        }
    });
}

/// Asserts that a guest that has nothing to do sleeps.
pub(crate) fn assert_sleeps(guest: &Guest<'_>, rate: &str) {
    const FEW: u64 = 300;
    let client = guest.client_with_image();
    wait_until("a quiet nap", || {
        client.must(&["start", "-F", rate]);
        let before = guest.statistics();
        // Not a wait for something to happen: the time in which nothing may.
        thread::sleep(ASLEEP);
        let after = guest.statistics();
        client.must(&["stop", "-o", "run.unikprof"]);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        counters_add_up(&report);
        let slept_ns = after.since(&before, "now_ns");
        let counts = ["vcpu0.wakes", "vcpu0.timer_upcalls", "vcpu0.timer_calls"];
        let counts = counts.map(|count| after.since(&before, count));
        let blocked = &report["vcpus"][0]["runstate"]["blocked_ns"];
        let elapsed = report["recording"]["elapsed_ns"].as_u64().unwrap();
        println!("{counts:?} at {rate} Hz in {slept_ns} ns, blocked for {blocked} of {elapsed}");
        // The emulated clock may be a little slow.
        let is_asleep = slept_ns > ASLEEP.as_nanos() as u64 / 2
            && blocked.as_u64().unwrap() > elapsed / 2
            && counts.iter().all(|count| *count < FEW);
        is_asleep.then_some(())
    });
}
