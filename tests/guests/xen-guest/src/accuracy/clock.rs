//! The first vCPU's times, from its runstate, which excludes stolen time.

use xen_sys_lite::runstate::Runstate;

use crate::timer;
use crate::vcpus::{self, FIRST};

pub(super) fn running_ns() -> u64 {
    runstate().map_or(0, |state| state.running_at(timer::system_ns(FIRST)))
}

/// Its blocked time in ns.
pub(super) fn blocked_ns() -> u64 {
    runstate().map_or(0, |state| state.blocked_ns)
}

fn runstate() -> Option<Runstate> {
    vcpus::runstate(FIRST).map(|area| area.read())
}
