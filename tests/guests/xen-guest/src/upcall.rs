//! Interrupts by event channels and the timer: the sampler's ticks, and waking the main loop.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use xen_sys_lite::Errno;
use xen_sys_lite::clock::read_counter;
use xen_sys_lite::events::{Port, Upcall};
use xen_sys_lite::vcpu::VcpuId;

use crate::hypervisor::{events, shared_info};
use crate::interrupts::Registers;
use crate::processor::{self, MAX_VCPUS};
use crate::statistics::{self, VcpuStatistics};
use crate::vcpus::{self, FIRST};
use crate::{sampler, served, suspend, timer};

static UPCALLS: [Upcall<'static>; MAX_VCPUS] = processor::upcalls(shared_info());

/// Whether the vCPU's main loop should be woken. Ticks do not wake it.
static WOKEN: [AtomicBool; MAX_VCPUS] = [const { AtomicBool::new(false) }; MAX_VCPUS];
/// A bit for each port with an event that was not waited for yet.
static SIGNALS: [AtomicU64; PORTS / 64] = [const { AtomicU64::new(0) }; PORTS / 64];
const PORTS: usize = 4096;

/// A vCPU's event channel state.
pub(crate) fn of(vcpu: VcpuId) -> &'static Upcall<'static> {
    &UPCALLS[vcpu.0 as usize]
}

/// Lets an event of `port` wake the first vCPU's main loop.
pub(crate) fn wake_on(port: Port) -> Result<(), Errno> {
    of(FIRST).own(port);
    events().unmask(port)
}

/// Clears the owners of all ports, which change with a restore.
pub(crate) fn disown_all() {
    for upcall in &UPCALLS {
        (0..PORTS as u32).for_each(|port| upcall.disown(Port(port)));
    }
}

/// Whether the main loop should be woken; clears it.
pub(crate) fn take_woken(vcpu: VcpuId) -> bool {
    WOKEN[vcpu.0 as usize].swap(false, Ordering::Acquire)
}

/// Whether `port` has had an event since the last call.
pub(crate) fn take_signal(port: Port) -> bool {
    let (word, bit) = place(port);
    SIGNALS[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0
}

fn place(port: Port) -> (usize, u64) {
    let port = port.0 as usize % PORTS;
    (port / 64, 1 << (port % 64))
}

/// The source of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Event channels, the timer's among them where it has one.
    Events,
    /// The timer, where it has an interrupt of its own.
    #[cfg(target_arch = "aarch64")]
    Timer,
}

/// Called by the interrupt entry with interrupts off; `entered` is the cycle counter at the entry.
pub(crate) fn on_interrupt(cause: Cause, registers: Registers, entered: u64) {
    let vcpu = vcpus::current();
    let statistics = statistics::of(vcpu);
    let calls_before = statistics.call_cycles.get();
    let mut sampler_cycles = None;
    let on_timer = || {
        statistics.timer_upcalls.add(1);
        Some(measured(statistics, || sampler::on_timer(vcpu, &registers)))
    };
    statistics.upcalls.add(1);
    match cause {
        Cause::Events => drop(of(vcpu).demux(|port| {
            if timer::is_timer(vcpu, port) {
                sampler_cycles = on_timer();
            } else if vcpus::is_kick(vcpu, port) {
                statistics.kicks.add(1);
                sampler::on_kick(vcpu, &registers);
            } else {
                let (word, bit) = place(port);
                SIGNALS[word].fetch_or(bit, Ordering::AcqRel);
                WOKEN[vcpu.0 as usize].store(true, Ordering::Release);
                served::notice();
            }
        })),
        #[cfg(target_arch = "aarch64")]
        Cause::Timer => sampler_cycles = on_timer(),
    }
    if vcpu == FIRST {
        served::rescue();
    }
    if vcpu != FIRST {
        suspend::wait_while_stopped();
    }
    timer::arm(vcpu);
    if let Some(cycles) = sampler_cycles {
        statistics.sampler.add(cycles);
        let calls = statistics.call_cycles.get().wrapping_sub(calls_before);
        statistics.calls.add(calls);
        statistics.upcall.add(read_counter().wrapping_sub(entered));
    }
}

/// The cycles of `work`, without those in hypercalls.
fn measured(statistics: &VcpuStatistics, work: impl FnOnce()) -> u64 {
    let calls = statistics.call_cycles.get();
    let started = read_counter();
    work();
    let cycles = read_counter().wrapping_sub(started);
    cycles.wrapping_sub(statistics.call_cycles.get().wrapping_sub(calls))
}
