//! A vCPU's timers. Both raise [`Virq::TIMER`](crate::events::Virq::TIMER).
//!
//! The single shot takes an absolute deadline in system time; the periodic timer stops while the vCPU is
//! descheduled and never wakes an idle guest, so it is offered only to be switched off or for measurements.
//!
//! ```
//! use xen_sys_lite::fake::FakeXen;
//! use xen_sys_lite::timer::{self, Deadline, TimerError};
//! use xen_sys_lite::vcpu::VcpuId;
//!
//! let xen = FakeXen::new();
//! xen.advance(10_000);
//! timer::set_singleshot(&xen, VcpuId(0), Deadline::at(20_000))?;
//! let late = timer::set_singleshot(&xen, VcpuId(0), Deadline::in_future(5_000));
//! assert_eq!(late, Err(TimerError::DeadlinePassed));
//! timer::stop_singleshot(&xen, VcpuId(0))?;
//! # Ok::<(), TimerError>(())
//! ```

use core::fmt;

use crate::abi::vcpu::{SSHOTTMR_FUTURE, SetPeriodicTimer, SetSingleshotTimer};
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{
    VcpuSetPeriodicTimer, VcpuSetSingleshotTimer, VcpuStopPeriodicTimer, VcpuStopSingleshotTimer,
    issue_for_vcpu,
};
use crate::vcpu::VcpuId;

/// When the single shot fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    system_time_ns: u64,
    flags: u32,
}

impl Deadline {
    /// At a system time; one that has passed fires at once.
    #[must_use]
    pub const fn at(system_time_ns: u64) -> Self {
        Self {
            system_time_ns,
            flags: 0,
        }
    }

    /// At a system time; one that has passed may be refused with [`TimerError::DeadlinePassed`] (Xen is
    /// free to fire at once instead).
    #[must_use]
    pub const fn in_future(system_time_ns: u64) -> Self {
        Self {
            system_time_ns,
            flags: SSHOTTMR_FUTURE,
        }
    }
}

/// Why a timer could not be set or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimerError {
    /// The deadline had passed already (`ETIME`).
    DeadlinePassed,
    /// Only the vCPU itself can set its timers, and a period is a millisecond at least (`EINVAL`).
    Refused,
    /// No such vCPU (`ENOENT`).
    NoSuchVcpu,
    /// Another error of the hypercall.
    Other(Errno),
}

impl From<Errno> for TimerError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ETIME => Self::DeadlinePassed,
            Errno::EINVAL => Self::Refused,
            Errno::ENOENT => Self::NoSuchVcpu,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for TimerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeadlinePassed => f.write_str("the deadline has passed"),
            Self::Refused => f.write_str("the timer of another vCPU, or a period too short"),
            Self::NoSuchVcpu => f.write_str("no such vCPU"),
            Self::Other(errno) => write!(f, "the timer hypercall failed: {errno}"),
        }
    }
}

impl core::error::Error for TimerError {}

/// Sets the single shot of `vcpu`, which must be the calling one. It replaces an earlier deadline.
///
/// # Errors
/// See [`TimerError`].
#[inline]
pub fn set_singleshot(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    deadline: Deadline,
) -> Result<(), TimerError> {
    let mut argument = SetSingleshotTimer {
        timeout_abs_ns: deadline.system_time_ns,
        flags: deadline.flags,
        pad: 0,
    };
    issue_for_vcpu::<VcpuSetSingleshotTimer>(hypercall, vcpu, &mut argument)?;
    Ok(())
}

/// Stops the single shot of `vcpu`, which must be the calling one.
///
/// # Errors
/// See [`TimerError`].
pub fn stop_singleshot(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<(), TimerError> {
    issue_for_vcpu::<VcpuStopSingleshotTimer>(hypercall, vcpu, &mut ())?;
    Ok(())
}

/// Sets the periodic timer of `vcpu`.
///
/// # Errors
/// [`TimerError::Refused`] below a millisecond.
pub fn set_periodic(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    period_ns: u64,
) -> Result<(), TimerError> {
    issue_for_vcpu::<VcpuSetPeriodicTimer>(hypercall, vcpu, &mut SetPeriodicTimer { period_ns })?;
    Ok(())
}

/// Stops the periodic timer of `vcpu`. Some versions of Xen start a vCPU with one of 10 ms.
///
/// # Errors
/// See [`TimerError`].
pub fn stop_periodic(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<(), TimerError> {
    issue_for_vcpu::<VcpuStopPeriodicTimer>(hypercall, vcpu, &mut ())?;
    Ok(())
}
