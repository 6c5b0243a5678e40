//! Sleeping until something happens.

use xen_sys_lite::vcpu::VcpuId;

use crate::timer::Who;
use crate::vcpus::FIRST;
use crate::{interrupts, processor, sampler, served, statistics, timer, upcall, vcpus};

/// Sleeps until `deadline_ns`, whatever else happens. Profiles of blocked time show this function's
/// name.
#[cfg(feature = "accuracy")]
#[inline(never)]
pub(crate) fn wait_for_timer(deadline_ns: u64) {
    sleep_until(Some(deadline_ns), || false);
    // This prevents a tail jump, which would leave no frame.
    core::hint::black_box(());
}

/// Sleeps until an event for the first vCPU's main loop, mainly network packets, or until
/// `deadline_ns`. Profiles of blocked time show this function's name.
#[inline(never)]
pub(crate) fn wait_for_events(vcpu: VcpuId, deadline_ns: Option<u64>) {
    sleep_until(deadline_ns, || upcall::take_woken(vcpu));
    core::hint::black_box(());
}

/// Sleeps until `awake` returns true or `deadline_ns` (on the guest's clock) has passed.
///
/// `awake` is called with interrupts off, so that no upcall's change is missed. The sampler has no
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
            processor::wait();
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
