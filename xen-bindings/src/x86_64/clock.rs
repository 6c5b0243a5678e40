//! The time stamp counter.

#![allow(unsafe_code, reason = "reading the TSC is an instruction")]

/// Reads the processor's counter, not before the loads that come earlier: on x86-64 the time stamp
/// counter behind a fence (`lfence`).
#[must_use]
#[inline]
pub fn read_counter() -> u64 {
    // SAFETY: every x86_64 CPU has both instructions; a guest whose rdtsc is trapped has it
    // emulated.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}
