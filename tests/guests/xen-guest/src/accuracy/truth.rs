//! What is true of a load: by the first vCPU's runstate, so that what others stole is not in it.

use alloc::string::String;
use core::fmt::Write as _;

use xen_sys_lite::runstate::Runstate;

use crate::timer;
use crate::vcpus::{self, FIRST};

/// An answer under way: the total is measured from [`Truth::begin`] on.
pub(super) struct Truth {
    began_ns: u64,
    values: String,
}

impl Truth {
    /// Begins to measure.
    pub(super) fn begin() -> Self {
        Self {
            began_ns: running_ns(),
            values: String::new(),
        }
    }

    /// How long the vCPU has run since, in ns.
    pub(super) fn ran_ns(&self) -> u64 {
        running_ns().wrapping_sub(self.began_ns)
    }

    /// Adds what is true of `name`.
    pub(super) fn tell(&mut self, name: &str, value: u64) {
        // Writing to a string does not fail.
        let _ = write!(self.values, " {name}={value}");
    }

    /// The answer.
    pub(super) fn end(self) -> String {
        let mut answer = String::new();
        // As above.
        let _ = write!(answer, "total={}{}", self.ran_ns(), self.values);
        answer
    }
}

/// How long the first vCPU has run, in ns.
pub(super) fn running_ns() -> u64 {
    runstate().map_or(0, |state| state.running_at(timer::system_ns(FIRST)))
}

/// How long it was blocked, in ns.
pub(super) fn blocked_ns() -> u64 {
    runstate().map_or(0, |state| state.blocked_ns)
}

fn runstate() -> Option<Runstate> {
    vcpus::runstate(FIRST).map(|area| area.read())
}
