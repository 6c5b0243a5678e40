//! A timer handler that only sets the next deadline: the cost of ticks without a profiler.
//!
//! With `parts` it also walks and counts, each timed.

use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::interrupts::Registers;
#[cfg(feature = "agent")]
use crate::parts;
use crate::processor::MAX_VCPUS;
use crate::vcpus;

/// The time between two ticks in ns; 0 = off.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static NEXT_NS: [AtomicU64; MAX_VCPUS] = [const { AtomicU64::new(0) }; MAX_VCPUS];

/// Starts the ticks of `bare=RATE_HZ` on every running vCPU. The profiler must not have started.
pub(crate) fn start(command_line: CommandLine) {
    if let Some(rate_hz) = command_line.parsed::<u64>("bare").filter(|&rate| rate > 0) {
        PERIOD_NS.store(1_000_000_000 / rate_hz, Ordering::Relaxed);
        #[cfg(feature = "agent")]
        parts::prepare(command_line);
        (0..vcpus::running()).for_each(|number| vcpus::kick(VcpuId(number)));
    }
}

pub(crate) fn is_on() -> bool {
    PERIOD_NS.load(Ordering::Relaxed) > 0
}

/// Handles a deadline that has passed; returns the next one.
pub(crate) fn on_tick(vcpu: VcpuId, registers: &Registers, now_ns: u64) -> Option<u64> {
    #[cfg(feature = "agent")]
    parts::measure(vcpu, registers);
    #[cfg(not(feature = "agent"))]
    let _ = registers;
    Some(advance(vcpu, now_ns))
}

fn advance(vcpu: VcpuId, now_ns: u64) -> u64 {
    let next = &NEXT_NS[vcpu.0 as usize];
    let next_ns = (next.load(Ordering::Relaxed) + PERIOD_NS.load(Ordering::Relaxed)).max(now_ns);
    next.store(next_ns, Ordering::Relaxed);
    next_ns
}

/// Begins the ticks, or continues them after a sleep; returns the next deadline.
pub(crate) fn on_kick(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    NEXT_NS[vcpu.0 as usize].store(now_ns, Ordering::Relaxed);
    Some(advance(vcpu, now_ns))
}
