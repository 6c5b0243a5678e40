//! One single-shot timer per vCPU, shared by all that want an upcall at some time.
//!
//! There are three: the main loop that sleeps, the watch over a loop that may be stuck, and the sampler. The
//! earliest is armed, but as a rule only where that is earlier than what the timer is set to already: an upcall too
//! many now and then costs less than a hypercall each time. A vCPU that sleeps for longer than the timer is set to
//! would be woken for nothing, and sets it anew. Only a vCPU's own code sets its deadlines, with interrupts off.
//!
//! The clock is Xen's system time, but goes on where it stood over a save and restore. Where the profiler owns
//! the timer (`ticks=owned`), it arms it, and is told the earlier of the other two.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::{Port, Virq};
use xen_sys_lite::timer;
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::{Errno, events::Upcall};

use crate::descriptors::MAX_VCPUS;
use crate::hypervisor::{events, shared_info, xen};
#[cfg(feature = "agent")]
use crate::profiler;
use crate::upcall;

const NONE: u64 = u64::MAX;

/// Who wants an upcall of the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The main loop, which sleeps until then.
    Sleeper,
    /// The watch over the main loop.
    Watch,
    /// The sampler, where it does not own the timer.
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

/// Added to system time.
static OFFSET_NS: AtomicU64 = AtomicU64::new(0);

/// The guest's clock on this vCPU, ns.
pub(crate) fn now_ns(vcpu: VcpuId) -> u64 {
    from_system(system_ns(vcpu))
}

/// The guest's clock when system time is `system_ns`.
pub(crate) fn from_system(system_ns: u64) -> u64 {
    system_ns.wrapping_add(OFFSET_NS.load(Ordering::Relaxed))
}

/// After a restore, when system time has another origin: the clock goes on from `stood_ns`.
pub(crate) fn go_on_from(vcpu: VcpuId, stood_ns: u64) {
    let offset_ns = stood_ns.wrapping_sub(system_ns(vcpu));
    OFFSET_NS.store(offset_ns, Ordering::Relaxed);
}

/// System time on this vCPU, ns.
pub(crate) fn system_ns(vcpu: VcpuId) -> u64 {
    Clock::new(shared_info(), vcpu.0).map_or(0, |clock| clock.now_ns())
}

/// Binds the vCPU's timer interrupt; again after a restore, when nothing is armed any more.
pub(crate) fn connect(vcpu: VcpuId) -> Result<(), Errno> {
    let timer = &TIMERS[vcpu.0 as usize];
    let port = events().bind_virq(Virq::TIMER, vcpu)?;
    timer.port.store(port.0, Ordering::Relaxed);
    timer.armed.store(NONE, Ordering::Relaxed);
    let upcall: &Upcall<'_> = upcall::of(vcpu);
    upcall.own(port);
    events().unmask(port)
}

/// Is this the vCPU's timer?
pub(crate) fn is_timer(vcpu: VcpuId, port: Port) -> bool {
    TIMERS[vcpu.0 as usize].port.load(Ordering::Relaxed) == port.0
}

/// Sets a deadline on the guest's clock; `None`: none. The timer follows with [`arm`].
pub(crate) fn set(vcpu: VcpuId, who: Who, deadline_ns: Option<u64>) {
    TIMERS[vcpu.0 as usize].deadlines[who as usize]
        .store(deadline_ns.unwrap_or(NONE), Ordering::Relaxed);
}

/// The timer has fired: forgets what was armed and what has passed; answers whether the sampler's deadline has.
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

/// Arms the earliest deadline, unless the timer fires no later as it is.
pub(crate) fn arm(vcpu: VcpuId) {
    arm_unless(vcpu, |earliest, armed| earliest >= armed);
}

/// Arms the earliest deadline before a sleep, also where the timer would fire earlier.
pub(crate) fn arm_for_sleep(vcpu: VcpuId) {
    arm_unless(vcpu, |earliest, armed| earliest == armed);
}

fn arm_unless(vcpu: VcpuId, is_armed: impl FnOnce(u64, u64) -> bool) {
    let timer = &TIMERS[vcpu.0 as usize];
    let deadlines = timer.deadlines.iter();
    let earliest = deadlines
        .map(|deadline| deadline.load(Ordering::Relaxed))
        .fold(NONE, u64::min);
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
    // A deadline that has passed fires at once.
    if timer::set_singleshot(&xen(), system_ns).is_ok() {
        timer.armed.store(earliest, Ordering::Relaxed);
    }
}
