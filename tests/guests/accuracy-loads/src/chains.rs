//! Chains of frame pointers with known faults.
//!
//! Each function makes the next older frame record wrong, calls `under`, which has a frame and
//! works, and then restores everything. A walk along frame pointers finds `under` and its caller,
//! then the bad record. The unwind tables are correct, so a walk by them succeeds.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::{corrupted_chain, cyclic_chain, missing_chain};
#[cfg(target_arch = "x86_64")]
use x86_64::{corrupted_chain, cyclic_chain, missing_chain};

use crate::work::spin;

/// The fault of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A record that is its own caller.
    Cyclic,
    /// An invalid frame pointer.
    Corrupted,
    /// A frame pointer of 0: the chain ends too early, which a walk cannot detect.
    Missing,
}

/// The function that works.
pub const WORKER: &str = "under";

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 3] = [Fault::Cyclic, Fault::Corrupted, Fault::Missing];

    /// The function that causes this fault.
    pub fn function(self) -> &'static str {
        match self {
            Fault::Cyclic => "cyclic_chain",
            Fault::Corrupted => "corrupted_chain",
            Fault::Missing => "missing_chain",
        }
    }
}

/// Works `steps` steps of about 3 ns below a chain with this fault.
#[inline(never)]
pub fn run(fault: Fault, steps: u32) -> u64 {
    // SAFETY: the functions follow the C ABI and use only their own stack.
    unsafe {
        match fault {
            Fault::Cyclic => cyclic_chain(steps) ^ 1,
            Fault::Corrupted => corrupted_chain(steps) ^ 3,
            Fault::Missing => missing_chain(steps) ^ 5,
        }
    }
}

#[inline(never)]
extern "C" fn under(steps: u32) -> u64 {
    spin(1, steps, 131)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a function restores its caller's frame.
    #[test]
    fn the_callers_frame_is_intact() {
        for fault in Fault::ALL {
            assert_ne!(run(fault, 10), run(fault, 11), "{fault:?}");
        }
    }
}
