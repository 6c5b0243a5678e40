//! Cases of one guest that works for a part of its time.

pub(crate) mod accounting;
mod faults;
mod traffic;

use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::Boot;

/// A guest that works for a part of its time, so that its vCPU runs and blocks.
const WORKING: Boot = Boot {
    name: "working",
    config: || {
        let mut guest = profiled_guest("working", "load=50 echo=7")?;
        guest.ports.push(7);
        Ok(LabConfig::with_guest(guest))
    },
};
