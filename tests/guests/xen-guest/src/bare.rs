//! A timer handler that does nothing but go on: what ticks cost before there is a profiler.
//!
//! With `parts` it walks and counts too, each timed.

use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::descriptors::MAX_VCPUS;
use crate::interrupts::Registers;
#[cfg(feature = "agent")]
use crate::parts;
use crate::vcpus;

/// Time between two ticks, ns; zero: off.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static NEXT_NS: [AtomicU64; MAX_VCPUS] = [const { AtomicU64::new(0) }; MAX_VCPUS];

/// Starts the ticks that `bare=RATE_HZ` asks for, on every vCPU that runs. The profiler must not have started.
pub(crate) fn start(command_line: CommandLine) {
    if let Some(rate_hz) = command_line.parsed::<u64>("bare").filter(|&rate| rate > 0) {
        PERIOD_NS.store(1_000_000_000 / rate_hz, Ordering::Relaxed);
        #[cfg(feature = "agent")]
        parts::prepare(command_line);
        (0..vcpus::running()).for_each(|number| vcpus::kick(VcpuId(number)));
    }
}

/// Was it asked for?
pub(crate) fn is_on() -> bool {
    PERIOD_NS.load(Ordering::Relaxed) > 0
}

/// The deadline has passed; answers the next.
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

/// The ticks begin, or go on after a sleep; answers the next deadline.
pub(crate) fn on_kick(vcpu: VcpuId, now_ns: u64) -> Option<u64> {
    NEXT_NS[vcpu.0 as usize].store(now_ns, Ordering::Relaxed);
    Some(advance(vcpu, now_ns))
}
