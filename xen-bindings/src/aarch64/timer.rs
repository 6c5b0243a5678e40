//! A vCPU's virtual timer. It compares the virtual counter with a deadline, and needs no hypercall.
//!
//! Its interrupt is private to the vCPU ([`INTERRUPT`]). It stays active as long as the deadline
//! has passed, and Xen masks the timer when it delivers the interrupt: setting a new deadline
//! unmasks it.

use super::registers::write;
use crate::clock::Clock;

/// The interrupt of the virtual timer, as Xen gives it to guests (`GUEST_TIMER_VIRT_PPI` of
/// `arch-arm.h`).
pub const INTERRUPT: u32 = 27;

/// `CNTV_CTL_EL0`: the timer runs, and its interrupt is not masked.
const ENABLED: u64 = 1;

/// Sets the calling vCPU's timer to a system time of its clock, in ns. It replaces an earlier
/// deadline; one that has passed fires at once.
#[inline]
pub fn set_singleshot(clock: &Clock<'_>, system_time_ns: u64) {
    let counter = clock.snapshot().counter_at(system_time_ns);
    write!("cntv_cval_el0", counter);
    write!("cntv_ctl_el0", ENABLED);
}

/// Stops the calling vCPU's timer.
#[inline]
pub fn stop_singleshot() {
    write!("cntv_ctl_el0", 0);
}
