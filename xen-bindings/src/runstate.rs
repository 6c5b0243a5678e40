//! The division of a vCPU's time: running, stolen, blocked, offline.
//!
//! Xen keeps the figures in an area the guest [registers](register); reading takes no hypercall, so
//! the upcall may do it, and another vCPU too. A vCPU has one area: one that is registered later
//! replaces it, and Xen no longer updates the former. [`times_now`] needs none.
//!
//! ```
//! use xen_sys_lite::fake::FakeXen;
//! use xen_sys_lite::runstate::{self, RunstateArea};
//! use xen_sys_lite::vcpu::VcpuId;
//!
//! static AREA: RunstateArea = RunstateArea::new();
//!
//! let xen = FakeXen::new();
//! runstate::enable_update_flag(&xen)?;
//! runstate::register(&xen, VcpuId(0), &AREA)?;
//! xen.steal(VcpuId(0), 700);
//! assert_eq!(AREA.read().stolen_ns, 700);
//! # Ok::<(), xen_sys_lite::Errno>(())
//! ```

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::abi::vcpu::{RUNSTATE_UPDATE, RunstateInfo, runstate as abi};
use crate::abi::xen::VMASST_TYPE_RUNSTATE_UPDATE_FLAG;
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations;
use crate::vcpu::VcpuId;

/// The memory in which Xen keeps one vCPU's runstate: a static of the guest.
///
/// Xen writes to its *virtual* address when the vCPU is scheduled, so every page table used by that
/// vCPU must map it.
#[repr(transparent)]
#[derive(Debug)]
pub struct RunstateArea(RunstateInfo);

/// The state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On a physical CPU.
    Running,
    /// Able to run, waiting for a physical CPU that others use.
    Runnable,
    /// Idle.
    Blocked,
    /// Paused or unplugged.
    Offline,
    /// A state this crate does not know.
    Unsupported(u32),
}

/// A consistent copy of a vCPU's runstate. Times are totals since the vCPU was made, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runstate {
    /// State at the last update; a vCPU that reads its own finds itself running.
    pub state: State,
    /// System time at which that state was entered: the totals stand as of then.
    pub entered_ns: u64,
    /// Time on a physical CPU.
    pub running_ns: u64,
    /// Time it could have run and others did.
    pub stolen_ns: u64,
    /// Time it was idle.
    pub blocked_ns: u64,
    /// Time it was paused or unplugged.
    pub offline_ns: u64,
}

impl Runstate {
    /// Running time at system time `now_ns`: the total, plus the time since a running vCPU was
    /// scheduled.
    #[must_use]
    pub const fn running_at(&self, now_ns: u64) -> u64 {
        match self.state {
            State::Running => {
                self.running_ns.saturating_add(now_ns.saturating_sub(self.entered_ns))
            }
            _ => self.running_ns,
        }
    }
}

impl RunstateArea {
    /// An area that Xen has not written yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(RunstateInfo::new())
    }

    /// Copies the area, again and again while Xen updates it.
    ///
    /// Consistent for the vCPU itself; for another one only after [`enable_update_flag`].
    #[must_use]
    #[inline]
    pub fn read(&self) -> Runstate {
        loop {
            if let Some(runstate) = self.try_read() {
                return runstate;
            }
            core::hint::spin_loop();
        }
    }

    /// Copies the area if no update is in progress; otherwise `None`, and the caller has to retry.
    #[must_use]
    pub fn try_read(&self) -> Option<Runstate> {
        let entered = self.0.state_entry_time.load(Ordering::Acquire);
        let state = self.0.state.load(Ordering::Relaxed);
        let [running, runnable, blocked, offline] =
            self.0.time.each_ref().map(|time| time.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let unchanged = self.0.state_entry_time.load(Ordering::Relaxed) == entered;
        (entered & RUNSTATE_UPDATE == 0 && unchanged).then_some(Runstate {
            state: State::from(state),
            entered_ns: entered,
            running_ns: running,
            stolen_ns: runnable,
            blocked_ns: blocked,
            offline_ns: offline,
        })
    }
}

impl Default for RunstateArea {
    fn default() -> Self {
        Self::new()
    }
}

impl From<u32> for State {
    fn from(code: u32) -> Self {
        match code {
            abi::RUNNING => Self::Running,
            abi::RUNNABLE => Self::Runnable,
            abi::BLOCKED => Self::Blocked,
            abi::OFFLINE => Self::Offline,
            other => Self::Unsupported(other),
        }
    }
}

/// Has Xen keep `vcpu`'s runstate in `area` from now on. Again after a restore or migration.
///
/// # Errors
/// `ENOENT` for a vCPU that does not exist.
pub fn register(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    area: &'static RunstateArea,
) -> Result<(), Errno> {
    operations::register_runstate(hypercall, vcpu, area)
}

/// Time that `vcpu` has spent running, runnable, blocked and offline until now, ns since it was
/// made: by a hypercall, for a guest whose area is another's. Any vCPU may be named. Xen has the
/// call on x86 only.
///
/// # Errors
/// `ENOENT` for a vCPU that does not exist, `ENOSYS` or `EINVAL` on Arm.
pub fn times_now(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<[u64; 4], Errno> {
    let mut info = RunstateInfo::new();
    operations::get_runstate(hypercall, vcpu, &mut info)?;
    Ok(info.time.map(AtomicU64::into_inner))
}

/// Has Xen mark updates under way, so that areas of other vCPUs can be read consistently. Once per
/// domain.
///
/// # Errors
/// `ENOSYS` or `EINVAL` from a Xen that does not know the flag; the vCPU's own area is consistent
/// still.
pub fn enable_update_flag(hypercall: &impl Hypercall) -> Result<(), Errno> {
    operations::vm_assist_enable(hypercall, VMASST_TYPE_RUNSTATE_UPDATE_FLAG)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Guards against mixing two updates.
    #[test]
    fn an_update_under_way_is_not_read() {
        let area = RunstateArea::new();
        area.0.time[1].store(7, Ordering::Relaxed);
        area.0.state_entry_time.store(RUNSTATE_UPDATE | 5, Ordering::Relaxed);
        assert_eq!(area.try_read(), None);
        area.0.state_entry_time.store(5, Ordering::Relaxed);
        assert_eq!(area.try_read().unwrap().stolen_ns, 7);
    }

    /// Guards against reading from the area that was registered.
    #[test]
    fn times_are_told_whatever_area_is_registered() {
        static AREA: RunstateArea = RunstateArea::new();
        static LATER: RunstateArea = RunstateArea::new();
        let xen = crate::fake::FakeXen::new();
        for area in [&AREA, &LATER] {
            register(&xen, VcpuId(0), area).unwrap();
        }
        xen.advance(1_000);
        xen.steal(VcpuId(0), 700);
        let later = LATER.read();
        assert_eq!(AREA.read().stolen_ns, 0);
        assert_eq!(times_now(&xen, VcpuId(0)), Ok([later.running_ns, 700, 0, 0]));
        assert_eq!(times_now(&xen, VcpuId(9)), Err(Errno::ENOENT));
    }

    #[test]
    fn an_unknown_state_survives() {
        let area = RunstateArea::new();
        area.0.state.store(77, Ordering::Relaxed);
        assert_eq!(area.read().state, State::Unsupported(77));
    }

    #[test]
    fn only_a_running_vcpu_gains_running_time() {
        let area = RunstateArea::new();
        area.0.state_entry_time.store(100, Ordering::Relaxed);
        area.0.time[0].store(40, Ordering::Relaxed);
        assert_eq!(area.read().running_at(130), 70);
        assert_eq!(area.read().running_at(90), 40);
        area.0.state.store(abi::BLOCKED, Ordering::Relaxed);
        assert_eq!(area.read().running_at(130), 40);
    }
}
