//! A timer handler that only sets the next deadline: the cost of ticks without a profiler.

use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::processor::MAX_VCPUS;
use crate::vcpus;

/// The time between two ticks in ns; 0 = off.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static NEXT_NS: [AtomicU64; MAX_VCPUS] = [const { AtomicU64::new(0) }; MAX_VCPUS];

/// Reads the rate of `bare=RATE_HZ`, before the load starts, whose result then waits for ticks.
pub(crate) fn configure(command_line: CommandLine) {
    if let Some(rate_hz) = command_line.parsed::<u64>("bare").filter(|&rate| rate > 0) {
        PERIOD_NS.store(1_000_000_000 / rate_hz, Ordering::Relaxed);
    }
}

/// Starts the ticks, if there are to be some, on every running vCPU. The profiler must not have
/// started.
pub(crate) fn start() {
    if is_on() {
        (0..vcpus::running()).for_each(|number| vcpus::kick(VcpuId(number)));
    }
}

pub(crate) fn is_on() -> bool {
    PERIOD_NS.load(Ordering::Relaxed) > 0
}

/// Handles a deadline that has passed; returns the next one, if there are ticks.
pub(crate) fn on_tick(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    let next = &NEXT_NS[vcpu.0 as usize];
    let period_ns = PERIOD_NS.load(Ordering::Relaxed);
    let next_ns = (next.load(Ordering::Relaxed) + period_ns).max(now_ns);
    next.store(next_ns, Ordering::Relaxed);
    is_on().then_some(next_ns)
}

/// Begins the ticks, or continues them after a sleep; returns the next deadline, if there are
/// ticks.
pub(crate) fn on_kick(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    NEXT_NS[vcpu.0 as usize].store(now_ns, Ordering::Relaxed);
    on_tick(vcpu, now_ns)
}
