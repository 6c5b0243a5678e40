//! The true values of a load, from the first vCPU's runstate, which excludes stolen time.

use alloc::string::String;
use core::fmt::Write as _;

use xen_sys_lite::runstate::Runstate;

use crate::timer;
use crate::vcpus::{self, FIRST};

/// An answer being made; its total is measured from [`Truth::begin`] on.
pub(super) struct Truth {
    began_ns: u64,
    values: String,
}

impl Truth {
    /// Starts the measurement.
    pub(super) fn begin() -> Self {
        Self {
            began_ns: running_ns(),
            values: String::new(),
        }
    }

    /// The vCPU's running time since then, in ns.
    pub(super) fn ran_ns(&self) -> u64 {
        running_ns().wrapping_sub(self.began_ns)
    }

    /// Adds the true value of `name`.
    pub(super) fn tell(&mut self, name: &str, value: u64) {
        // Writing to a string cannot fail.
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

/// The first vCPU's running time in ns.
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
