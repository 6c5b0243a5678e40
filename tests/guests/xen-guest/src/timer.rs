//! One single-shot timer per vCPU, shared by all users of timer upcalls.
//!
//! There are three: the sleeping main loop, the watch over a loop that may be stuck, and the
//! sampler. The earliest deadline is armed, but usually only if the timer is not set to an earlier
//! time already: an occasional superfluous upcall costs less than a hypercall each time. Before a
//! sleep beyond that time the timer is always set, so that the vCPU is not woken for nothing. Only
//! a vCPU's own code sets its deadlines, with interrupts off.
//!
//! The guest's clock is Xen's system time, but continues over a save and restore. If the profiler
//! owns the timer (`ticks=owned`), the profiler arms it, and gets the earlier of the other two
//! deadlines.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::Port;
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::{Errno, events::Upcall};

use crate::hypervisor::{events, shared_info};
use crate::processor::{self, MAX_VCPUS};
#[cfg(feature = "agent")]
use crate::profiler;
use crate::upcall;

const NONE: u64 = u64::MAX;

/// A user of timer upcalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The main loop, which sleeps until its deadline.
    Sleeper,
    /// The watch over the main loop.
    Watch,
    /// The sampler, if it does not own the timer.
    Sampler,
}
const WHOS: usize = 3;

struct Timer {
    port: AtomicU32,
    deadlines: [AtomicU64; WHOS],
    armed: AtomicU64,
}

static TIMERS: [Timer; MAX_VCPUS] = [const {
    Timer {
        port: AtomicU32::new(u32::MAX),
        deadlines: [const { AtomicU64::new(NONE) }; WHOS],
        armed: AtomicU64::new(NONE),
    }
}; MAX_VCPUS];

/// The offset added to system time.
static OFFSET_NS: AtomicU64 = AtomicU64::new(0);

/// The guest's clock on this vCPU, ns.
pub(crate) fn now_ns(vcpu: VcpuId) -> u64 {
    from_system(system_ns(vcpu))
}

/// The guest's clock when system time is `system_ns`.
pub(crate) fn from_system(system_ns: u64) -> u64 {
    system_ns.wrapping_add(OFFSET_NS.load(Ordering::Relaxed))
}

/// Continues the clock from `stood_ns` after a restore, when system time has another origin.
pub(crate) fn go_on_from(vcpu: VcpuId, stood_ns: u64) {
    let offset_ns = stood_ns.wrapping_sub(system_ns(vcpu));
    OFFSET_NS.store(offset_ns, Ordering::Relaxed);
}

/// System time on this vCPU, ns.
pub(crate) fn system_ns(vcpu: VcpuId) -> u64 {
    clock(vcpu).map_or(0, |clock| clock.now_ns())
}

/// The vCPU's clock of system time; `None` if the vCPU does not exist.
pub(crate) fn clock(vcpu: VcpuId) -> Option<Clock<'static>> {
    let time = processor::time_info(vcpu)?;
    Some(Clock::with_time_info(shared_info(), time))
}

/// Connects the vCPU's timer, which may have an event channel. Called again after a restore, when
/// nothing is armed.
pub(crate) fn connect(vcpu: VcpuId) -> Result<(), Errno> {
    let timer = &TIMERS[vcpu.0 as usize];
    timer.armed.store(NONE, Ordering::Relaxed);
    let Some(port) = processor::connect_timer(vcpu)? else {
        return Ok(());
    };
    timer.port.store(port.0, Ordering::Relaxed);
    let upcall: &Upcall<'_> = upcall::of(vcpu);
    upcall.own(port);
    events().unmask(port)
}

pub(crate) fn is_timer(vcpu: VcpuId, port: Port) -> bool {
    TIMERS[vcpu.0 as usize].port.load(Ordering::Relaxed) == port.0
}

/// Sets a deadline on the guest's clock, or none. Call [`arm`] afterwards.
pub(crate) fn set(vcpu: VcpuId, who: Who, deadline_ns: Option<u64>) {
    TIMERS[vcpu.0 as usize].deadlines[who as usize]
        .store(deadline_ns.unwrap_or(NONE), Ordering::Relaxed);
}

/// Clears the armed time and passed deadlines after the timer has fired; returns whether the
/// sampler's deadline has passed.
pub(crate) fn fired(vcpu: VcpuId, now_ns: u64) -> bool {
    let timer = &TIMERS[vcpu.0 as usize];
    timer.armed.store(NONE, Ordering::Relaxed);
    for who in [Who::Sleeper, Who::Watch] {
        let deadline = &timer.deadlines[who as usize];
        if deadline.load(Ordering::Relaxed) <= now_ns {
            deadline.store(NONE, Ordering::Relaxed);
        }
    }
    timer.deadlines[Who::Sampler as usize].load(Ordering::Relaxed) <= now_ns
}

/// Arms the earliest deadline, unless the timer is armed for that time or an earlier one.
pub(crate) fn arm(vcpu: VcpuId) {
    arm_unless(vcpu, |earliest, armed| earliest >= armed);
}

/// Arms the earliest deadline before a sleep, even if the timer is armed for an earlier time.
pub(crate) fn arm_for_sleep(vcpu: VcpuId) {
    arm_unless(vcpu, |earliest, armed| earliest == armed);
}

fn arm_unless(vcpu: VcpuId, is_armed: impl FnOnce(u64, u64) -> bool) {
    let timer = &TIMERS[vcpu.0 as usize];
    let deadlines = timer.deadlines.iter();
    let earliest = deadlines.map(|deadline| deadline.load(Ordering::Relaxed)).fold(NONE, u64::min);
    let system_ns = match earliest {
        NONE => None,
        at => Some(at.wrapping_sub(OFFSET_NS.load(Ordering::Relaxed))),
    };
    #[cfg(feature = "agent")]
    if let Some(owner) = profiler::timer_owner()
        && owner.set_guest_deadline(system_ns)
    {
        return;
    }
    let Some(system_ns) = system_ns else { return };
    if is_armed(earliest, timer.armed.load(Ordering::Relaxed)) {
        return;
    }
    // A deadline in the past fires at once.
    if processor::arm_timer(vcpu, system_ns) {
        timer.armed.store(earliest, Ordering::Relaxed);
    }
}
