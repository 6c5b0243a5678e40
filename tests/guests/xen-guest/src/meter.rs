//! A meter instead of a profiler: it counts ticks and the code that they interrupted, so that the guest can report
//! whether Xen's timer reaches the sampler.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::interrupts::Registers;
use crate::processor::MAX_VCPUS;
use crate::{busy, vcpus};

/// The time between two ticks in ns; 0 = no ticks.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static METERS: [Meter; MAX_VCPUS] = [const { Meter::new() }; MAX_VCPUS];

/// The results of one vCPU's ticks.
#[derive(Debug)]
pub(crate) struct Meter {
    ticks: AtomicU64,
    /// Ticks that interrupted the busy loop.
    busy: AtomicU64,
    /// Of these, ticks whose stack pointer was on the vCPU's stack and whose frame pointer led to the caller of the
    /// busy loop.
    right_caller: AtomicU64,
    /// Ticks that woke the vCPU.
    asleep_ticks: AtomicU64,
    /// When the next tick is due; while the vCPU sleeps, the running time left until then.
    target_ns: AtomicU64,
    asleep: AtomicBool,
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ticks, {} in the busy loop, {} with its caller",
            self.ticks(),
            self.busy.load(Ordering::Relaxed),
            self.right_caller.load(Ordering::Relaxed)
        )
    }
}

impl Meter {
    const fn new() -> Self {
        Self {
            ticks: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            right_caller: AtomicU64::new(0),
            asleep_ticks: AtomicU64::new(0),
            target_ns: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
        }
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Ticks while the vCPU slept, of which there should be none.
    pub(crate) fn asleep_ticks(&self) -> u64 {
        self.asleep_ticks.load(Ordering::Relaxed)
    }
}

/// Requests a tick each `period_ns` on every vCPU; 0 = none.
pub(crate) fn set_period(period_ns: u64) {
    PERIOD_NS.store(period_ns, Ordering::Relaxed);
    for number in 0..vcpus::running() {
        vcpus::kick(VcpuId(number));
    }
}

/// Whether a vCPU has had this many ticks, or none are requested.
#[cfg(feature = "demo")]
pub(crate) fn has_seen(vcpu: VcpuId, ticks: u64) -> bool {
    PERIOD_NS.load(Ordering::Relaxed) == 0 || meter(vcpu).ticks() >= ticks
}

/// The counts of a vCPU.
pub(crate) fn meter(vcpu: VcpuId) -> &'static Meter {
    &METERS[vcpu.0 as usize]
}

/// Handles a tick that interrupted `registers`; returns the next deadline.
pub(crate) fn on_tick(vcpu: VcpuId, registers: Registers, now_ns: u64) -> Option<u64> {
    let meter = meter(vcpu);
    meter.ticks.fetch_add(1, Ordering::Relaxed);
    if meter.asleep.load(Ordering::Relaxed) {
        meter.asleep_ticks.fetch_add(1, Ordering::Relaxed);
    }
    if busy::contains(registers.pc) {
        meter.busy.fetch_add(1, Ordering::Relaxed);
        if vcpus::stack_bounds(registers.sp)
            .is_some_and(|stack| busy::called_from(registers, &stack))
        {
            meter.right_caller.fetch_add(1, Ordering::Relaxed);
        }
    }
    let period = PERIOD_NS.load(Ordering::Relaxed);
    let target = meter
        .target_ns
        .load(Ordering::Relaxed)
        .saturating_add(period)
        .max(now_ns);
    meter.target_ns.store(target, Ordering::Relaxed);
    (period > 0).then_some(target)
}

/// Handles a kick from another vCPU; returns the deadline.
pub(crate) fn on_kick(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    let meter = meter(vcpu);
    let period = PERIOD_NS.load(Ordering::Relaxed);
    if period == 0 || meter.asleep.load(Ordering::Relaxed) {
        return None;
    }
    let target = now_ns.saturating_add(period);
    meter.target_ns.store(target, Ordering::Relaxed);
    Some(target)
}

/// Stores the time left to the target when the vCPU is about to sleep.
pub(crate) fn on_block(vcpu: VcpuId, now_ns: u64) {
    let meter = meter(vcpu);
    meter.asleep.store(true, Ordering::Relaxed);
    let left = meter
        .target_ns
        .load(Ordering::Relaxed)
        .saturating_sub(now_ns);
    meter.target_ns.store(left, Ordering::Relaxed);
}

/// Returns the next deadline when the vCPU has woken.
pub(crate) fn on_wake(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    let meter = meter(vcpu);
    meter.asleep.store(false, Ordering::Relaxed);
    let target = meter
        .target_ns
        .load(Ordering::Relaxed)
        .saturating_add(now_ns);
    meter.target_ns.store(target, Ordering::Relaxed);
    (PERIOD_NS.load(Ordering::Relaxed) > 0).then_some(target)
}
