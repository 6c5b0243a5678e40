//! Sleeping until something happens.

#![allow(unsafe_code, reason = "sleeping is an instruction")]

use core::arch::{asm, naked_asm};

use xen_sys_lite::vcpu::VcpuId;

use crate::timer::Who;
use crate::vcpus::FIRST;
use crate::{interrupts, sampler, served, statistics, timer, upcall, vcpus};

/// Sleeps until `deadline_ns`, whatever else happens. A profile of blocked time shows who waits by this name.
#[cfg(feature = "accuracy")]
#[inline(never)]
pub(crate) fn wait_for_timer(deadline_ns: u64) {
    sleep_until(Some(deadline_ns), || false);
    // What follows keeps the call from becoming a jump, which would leave no frame.
    core::hint::black_box(());
}

/// Sleeps until something comes that the first vCPU's main loop should look at, the network's packets above all,
/// or until `deadline_ns`. A profile of blocked time shows who waits by this name.
#[inline(never)]
pub(crate) fn wait_for_events(vcpu: VcpuId, deadline_ns: Option<u64>) {
    sleep_until(deadline_ns, || upcall::take_woken(vcpu));
    core::hint::black_box(());
}

/// Sleeps until `awake` or until `deadline_ns` (the guest's clock) has passed.
///
/// `awake` is asked with interrupts off, so what an upcall does is never slept through. The sampler has no
/// deadline meanwhile: an idle guest stays asleep.
#[inline(never)]
pub(crate) fn sleep_until(deadline_ns: Option<u64>, mut awake: impl FnMut() -> bool) {
    let vcpu = vcpus::current();
    let statistics = statistics::of(vcpu);
    interrupts::disable();
    let mut awake = || awake() || deadline_ns.is_some_and(|at| at <= timer::now_ns(vcpu));
    if !awake() {
        sampler::on_block(vcpu);
        if vcpu == FIRST {
            served::on_block();
            timer::set(vcpu, Who::Watch, None);
        }
        statistics.blocks.add(1);
        loop {
            timer::set(vcpu, Who::Sleeper, deadline_ns);
            timer::arm_for_sleep(vcpu);
            block();
            statistics.wakes.add(1);
            if awake() {
                break;
            }
        }
        timer::set(vcpu, Who::Sleeper, None);
        sampler::on_wake(vcpu);
        if vcpu == FIRST {
            served::on_wake();
        }
        timer::arm(vcpu);
    }
    interrupts::enable();
}

/// Sleeps until the next interrupt, with interrupts off before and after.
///
/// The processor takes no interrupt between `sti` and the instruction behind it, so none is slept through;
/// Xen handles `hlt` as `SCHEDOP_block`. An emulated one may take it there all the same: see [`leave_hlt`].
fn block() {
    // SAFETY: interrupts find their table and stacks, and leave the registers as they were.
    unsafe { asm!("call {}", sym sti_hlt_cli, clobber_abi("C")) };
}

#[unsafe(naked)]
unsafe extern "C" fn sti_hlt_cli() {
    naked_asm!("sti", ".globl idle_hlt", "idle_hlt:", "hlt", "cli", "ret",)
}

/// Where to return to from an interrupt at `pc`: behind the `hlt` instead of to it.
///
/// In QEMU's emulation an upcall comes between the two now and then, once in a minute or two of a guest that sleeps
/// hundreds of times a second. The `hlt` would sleep through what it told: for ever, where that was the timer and the
/// network at once.
pub(crate) fn leave_hlt(pc: u64) -> u64 {
    unsafe extern "C" {
        static idle_hlt: u8;
    }
    if pc == &raw const idle_hlt as u64 {
        pc + 1
    } else {
        pc
    }
}
