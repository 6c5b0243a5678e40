//! The virtual counter.

use super::registers::read;

/// Reads the processor's counter, not before the loads that come earlier: on aarch64 the virtual
/// counter, behind an instruction barrier (`isb`). Xen sets it to zero when the domain is made.
#[must_use]
#[inline]
#[allow(unsafe_code, reason = "the barrier is an instruction")]
pub fn read_counter() -> u64 {
    // SAFETY: a barrier changes nothing.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
    read!("cntvct_el0")
}

/// The frequency of the virtual counter, Hz.
#[must_use]
pub fn counter_hz() -> u64 {
    read!("cntfrq_el0")
}
