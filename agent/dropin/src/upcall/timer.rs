//! The one-shot timer: whether it has fired, and when it fires next.

use core::sync::atomic::Ordering;

use xen_sys_lite::clock::{Clock, read_counter};

use super::Running;
use crate::machine;
use crate::vcpus::{NEVER, Vcpu};

/// The timer may fire so much before its time, on another clock than Xen's.
const EARLY_NS: u64 = 100_000;
/// The one-shot timer counts no longer than 42.9 s.
const LONGEST_NS: u64 = 40_000_000_000;

/// Cycles of the time stamp counter in a ns, 32.32 fixed point.
pub(super) fn cycles_per_ns(clock: &Clock<'_>) -> u64 {
    let hz = clock.snapshot().counter_hz().unwrap_or(0);
    ((u128::from(hz) << 32) / 1_000_000_000) as u64
}

impl Running {
    /// Whether the interrupt is known to be the timer's, and whether the timer has fired. If the
    /// guest uses the timer, the profiler does so no more.
    pub(super) fn find_timer(&self, vcpu: &Vcpu) -> (bool, bool) {
        let vector = self.delivery.vector;
        let is_timer = !self.delivery.by_apic && self.apic.is_in_service(vector);
        if is_timer {
            self.apic.end_of_interrupt();
        }
        // Also where its last interrupt was pending meanwhile: to arm it would end the guest's.
        if !vcpu.is_unusable.load(Ordering::Relaxed) && !self.apic.is_ours(vector) {
            vcpu.is_unusable.store(true, Ordering::Relaxed);
            machine::debug_line(
                "no more ticks, nor answers to clients: the guest uses the local APIC's timer \
                 itself now",
            );
        }
        let armed_ns = vcpu.armed_ns.load(Ordering::Relaxed);
        let has_fired = is_timer || self.is_past(armed_ns.saturating_sub(EARLY_NS));
        (is_timer, has_fired)
    }

    pub(super) fn is_past(&self, at_ns: u64) -> bool {
        at_ns != NEVER && at_ns <= self.clock.now_ns()
    }

    /// Arms the timer for the next tick or poll, unless it is armed for that time already and has
    /// not fired.
    pub(super) fn arm(&self, vcpu: &'static Vcpu, has_fired: bool) {
        if vcpu.is_unusable.load(Ordering::Relaxed) {
            return;
        }
        let tick_at_ns = vcpu.tick_at_ns.load(Ordering::Relaxed);
        let next_ns = if vcpu.is_first() {
            let is_owed = !self.is_polling() && self.is_owed.load(Ordering::Relaxed);
            let poll_at_ns = if is_owed { 0 } else { self.next_poll_ns() };
            poll_at_ns.min(self.check_at_ns.load(Ordering::Relaxed))
        } else {
            NEVER
        };
        let now_ns = self.clock.now_ns();
        let at_ns = match next_ns.min(tick_at_ns) {
            NEVER => NEVER,
            at_ns => at_ns.min(now_ns + LONGEST_NS),
        };
        if vcpu.armed_ns.swap(at_ns, Ordering::Relaxed) == at_ns && !has_fired {
            return;
        }
        let delay_ns = (at_ns != NEVER).then(|| at_ns.saturating_sub(now_ns));
        self.apic.arm(delay_ns, |delay_ns| {
            let cycles_per_ns = self.cycles_per_ns.load(Ordering::Relaxed);
            let cycles = (u128::from(delay_ns) * u128::from(cycles_per_ns)) >> 32;
            read_counter().wrapping_add(cycles as u64)
        });
    }
}
