//! Flight recorders: guests that record from their boot on, before anybody has come, beside other
//! recordings, and until they crash.

mod boot;
mod burst;
pub(crate) mod crash;
pub(crate) mod recordings;

use serde_json::Value;
use unikprof_tests::lab::{LabConfig, LabError};
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::time::{lines, sum};
use crate::xen_profile::harness::{Boot, Client};

/// Lives, and has a burst of other work early in its life.
const LIVING: &str = "flight";
/// Panics in its work.
const CRASHING: &str = "crash";
/// Panics in an upcall that interrupts its work.
const CRASHING_IN_UPCALL: &str = "crash-upcall";

/// The name of their recording.
pub(crate) const FLIGHT: &str = "recorder";

/// All of them share the one emulated processor that dom0 leaves, until two have crashed.
const RECORDERS: Boot = Boot {
    name: "flight recorders",
    config: || {
        let guest = |name, words| {
            let words = format!("record-at-boot={FLIGHT} hotspots=60 {words}");
            let mut guest = profiled_guest(name, &words)?;
            guest.memory_mb = 32;
            Ok::<_, LabError>(guest)
        };
        Ok(LabConfig {
            guests: vec![
                guest(LIVING, "burst_after=2 events=upcalls")?,
                guest(CRASHING, "panic_after=2")?,
                guest(CRASHING_IN_UPCALL, "panic_after=2 panic_in=upcall")?,
            ],
            processors: Some(2),
            // A guest's memory lies on dom0's RAM disk for a while.
            extra_dom0_memory_mb: 48,
            ..LabConfig::default()
        })
    },
};

/// The guest's events, as far back as its ring goes.
fn events(client: &Client) -> Vec<Value> {
    let told = client.must(&["events", "--json"]);
    assert!(!told.stderr.contains("evicted"), "{}", told.stderr);
    lines(&told.stdout)
}

/// Samples whose stack has a function in it, and all.
fn under(report: &Value, function: &str) -> (u64, u64) {
    let recorded = report["samples"]["recorded"].as_u64().unwrap();
    (sum(report, function, "total"), recorded)
}
