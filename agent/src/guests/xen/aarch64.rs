//! The aarch64 parts of the Xen platform: the virtual timer, the cycle counter, random numbers.
#![allow(unsafe_code)]

use core::arch::asm;

use xen_sys_lite::clock::{Clock, read_counter};
use xen_sys_lite::{Hypercall, timer};

/// The most tries for a random number: the instruction fails if the source has none ready.
const TRIES: u32 = 100;

/// Arms the calling vCPU's timer for a system time; returns whether it is armed. A deadline in the
/// past fires at once.
#[inline]
pub(super) fn arm_timer(
    _: &impl Hypercall,
    clock: impl FnOnce() -> Option<Clock<'static>>,
    system_time_ns: u64,
) -> bool {
    let Some(clock) = clock() else {
        return false;
    };
    timer::set_singleshot(&clock, system_time_ns);
    true
}

/// Stops the calling vCPU's timer.
#[inline]
pub(super) fn stop_timer(_: &impl Hypercall) {
    timer::stop_singleshot();
}

/// The virtual counter.
#[inline]
pub(super) fn cycles() -> u64 {
    read_counter()
}

/// 64 bits from RNDR; `None` if the processor does not have it, or has no number ready.
pub(super) fn random() -> Option<u64> {
    let features: u64;
    // SAFETY: the guest runs at exception level 1, which may read the register.
    unsafe {
        asm!("mrs {}, \
              id_aa64isar0_el1", out(reg) features, options(nomem, nostack, preserves_flags));
    }
    // The field of the random number instructions.
    if features >> 60 == 0 {
        return None;
    }
    (0..TRIES).find_map(|_| rndr())
}

/// The processor must have the instruction.
fn rndr() -> Option<u64> {
    let (word, filled): (u64, u64);
    // SAFETY: `random` has checked the feature register; the instruction writes a register and the
    // flags only.
    unsafe {
        asm!(
            "mrs {}, s3_3_c2_c4_0",
            "cset {}, ne",
            out(reg) word, out(reg) filled, options(nomem, nostack)
        );
    }
    (filled == 1).then_some(word)
}
