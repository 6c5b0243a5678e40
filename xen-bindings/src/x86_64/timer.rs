//! A vCPU's timers. Both raise [`Virq::TIMER`](crate::events::Virq::TIMER).
//!
//! The single-shot timer fires once, at an absolute system time. The periodic timer can only be
//! stopped here: it never wakes an idle guest, and its ticks keep step with whatever else has its
//! period.
//!
//! ```
//! use xen_sys_lite::Errno;
//! use xen_sys_lite::fake::FakeXen;
//! use xen_sys_lite::timer;
//!
//! let xen = FakeXen::new();
//! timer::set_singleshot(&xen, 20_000)?;
//! timer::stop_singleshot(&xen)?;
//! # Ok::<(), Errno>(())
//! ```

use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{VcpuStopPeriodicTimer, issue_for_vcpu, set_timer};
use crate::vcpu::VcpuId;

/// Sets the calling vCPU's single-shot timer to a system time, in ns. It replaces an earlier
/// deadline; one that has passed fires at once. A deadline more than 13 days (2^50 ns) ahead fires
/// within a second: Xen takes it for a counter that has wrapped.
///
/// `set_timer_op` takes the time in a register. `VCPUOP_set_singleshot_timer`, which does the same,
/// reads a structure for which Xen walks the guest's page tables;
/// docs/evidence/benchmarks.md has both.
///
/// # Errors
/// None that Xen documents; what it returned.
#[inline]
pub fn set_singleshot(hypercall: &impl Hypercall, system_time_ns: u64) -> Result<(), Errno> {
    // Zero would stop the timer; it has passed as surely as one.
    set_timer(hypercall, system_time_ns.max(1))
}

/// Stops the calling vCPU's single-shot timer.
///
/// # Errors
/// As [`set_singleshot`].
pub fn stop_singleshot(hypercall: &impl Hypercall) -> Result<(), Errno> {
    set_timer(hypercall, 0)
}

/// Stops the periodic timer of `vcpu`. Some versions of Xen start a vCPU with one of 10 ms.
///
/// # Errors
/// `ENOENT`: no such vCPU.
pub fn stop_periodic(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<(), Errno> {
    issue_for_vcpu::<VcpuStopPeriodicTimer>(hypercall, vcpu, &mut ())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::FakeXen;
    use crate::sched::block;

    /// When a vCPU that blocks is woken, with its timer set to `system_time_ns` at 1,000 ns.
    fn woken_at(system_time_ns: u64) -> u64 {
        let xen = FakeXen::new();
        xen.advance(1_000);
        set_singleshot(&xen, system_time_ns).unwrap();
        block(&xen).unwrap();
        xen.now_ns()
    }

    #[test]
    fn a_deadline_that_has_passed_fires_at_once_and_zero_is_no_exception() {
        assert_eq!(woken_at(9_000), 9_000);
        assert_eq!(woken_at(999), 1_000);
        assert_eq!(woken_at(0), 1_000);
    }

    /// Guests wait for years where nothing is to be done; they wake, look, and wait again.
    #[test]
    fn a_deadline_beyond_what_xen_believes_fires_soon() {
        assert_eq!(woken_at(1 << 49), 1 << 49);
        assert_eq!(woken_at(u64::MAX), 50_001_000);
    }
}
