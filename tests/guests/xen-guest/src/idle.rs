//! Sleeping until something happens.

#![allow(unsafe_code, reason = "sleeping is an instruction")]

use core::arch::asm;

use crate::timer::Who;
use crate::vcpus::FIRST;
use crate::{interrupts, sampler, served, statistics, timer, vcpus};

/// Sleeps until `awake` or until `deadline_ns` (the guest's clock) has passed.
///
/// `awake` is asked with interrupts off, so what an upcall does is never slept through. The sampler has no
/// deadline meanwhile: an idle guest stays asleep.
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
/// Xen handles `hlt` as `SCHEDOP_block`.
fn block() {
    // SAFETY: interrupts find their table and stacks.
    unsafe { asm!("sti", "hlt", "cli", options(nomem, nostack)) };
}
