//! The interface to a profiler: called at each tick and kick, before and after a sleep.
//!
//! The calls go to the profiler if it was started (feature `agent`), otherwise to the bare timer
//! handler, which has no deadlines unless it was requested. A running capture of samples (feature
//! `accuracy`) overrides all of them.

use xen_sys_lite::vcpu::VcpuId;

#[cfg(feature = "accuracy")]
use crate::capture;
use crate::interrupts::Registers;
use crate::timer::{self, Who};
use crate::{bare, vcpus};
#[cfg(feature = "agent")]
use crate::{events, failing, profiler};

/// The vCPU's timer has interrupted `registers`.
pub(crate) fn on_timer(vcpu: VcpuId, registers: &Registers) {
    let now_ns = timer::now_ns(vcpu);
    let is_due = timer::fired(vcpu, now_ns);
    #[cfg(feature = "agent")]
    {
        events::on_timer();
        failing::on_timer();
    }
    #[cfg(feature = "accuracy")]
    if capture::is_on() {
        if is_due {
            program(vcpu, Some(capture::on_tick(registers, now_ns)));
        }
        return;
    }
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        return program(vcpu, ticks.on_timer(Some(registers)).map(timer::from_system));
    }
    let _ = registers;
    if is_due {
        program(vcpu, bare::on_tick(vcpu, now_ns));
    }
}

/// A kick from another vCPU, to check the deadline, has interrupted `registers`.
pub(crate) fn on_kick(vcpu: VcpuId, registers: &Registers) {
    #[cfg(feature = "accuracy")]
    if capture::is_on() {
        return program(vcpu, Some(capture::next_ns(timer::now_ns(vcpu))));
    }
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        return program(vcpu, ticks.on_kick(Some(registers)).map(timer::from_system));
    }
    let _ = registers;
    program(vcpu, bare::on_kick(vcpu, timer::now_ns(vcpu)));
}

/// This vCPU is about to sleep. The sampler has no deadline until it wakes.
#[inline(always)]
pub(crate) fn on_block(vcpu: VcpuId) {
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        ticks.on_block(Some(&Registers::here()));
        return program(vcpu, None);
    }
    program(vcpu, None);
}

/// This vCPU has woken.
pub(crate) fn on_wake(vcpu: VcpuId) {
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        return program(vcpu, ticks.on_wake().map(timer::from_system));
    }
    program(vcpu, bare::on_kick(vcpu, timer::now_ns(vcpu)));
}

/// The domain is about to be suspended.
pub(crate) fn suspend() {
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        ticks.suspend();
    }
}

/// The domain was restored, and this vCPU's upcalls work again; the others are kicked.
pub(crate) fn resume(vcpu: VcpuId) {
    #[cfg(feature = "agent")]
    if let Some(ticks) = profiler::ticks() {
        return program(vcpu, ticks.resume().map(timer::from_system));
    }
    for number in 0..vcpus::running() {
        vcpus::kick(VcpuId(number));
    }
    program(vcpu, None);
}

fn program(vcpu: VcpuId, deadline_ns: Option<u64>) {
    timer::set(vcpu, Who::Sampler, deadline_ns);
}
