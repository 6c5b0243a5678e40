//! Polls: the network work, with interrupts on, within its share of a CPU.
#![allow(unsafe_code, reason = "the service is the poll's")]

use core::sync::atomic::Ordering;

use unikprof_agent::Platform as _;

use super::entry::Saved;
use super::{CHECK_NS, Running};
use crate::machine;
use crate::vcpus::{self, NEVER};

/// Polls take their share of a CPU over this time.
const SHARE_NS: u64 = 100_000_000;

impl Running {
    pub(super) fn on_poll(&self, saved: &mut Saved) {
        let vcpu = vcpus::first();
        // A tick that has become due since the interrupt fires as soon as interrupts are on.
        let _own_work = self.agent.own_work();
        let events = self.guests_events.load(Ordering::Relaxed);
        let waits_at = vcpu.waits_at.load(Ordering::Relaxed);
        self.is_noticed.store(false, Ordering::Relaxed);
        let began_ns = (self.clock.now_ns(), self.running_ns());
        machine::enable_interrupts();
        // SAFETY: `is_polling` is set, so this is the only poll.
        let next_ns = unsafe { &mut *self.served.get() }.poll();
        machine::disable_interrupts();
        let platform = self.agent.platform();
        let poll_at_ns = next_ns.map_or(NEVER, |at_ns| platform.timer_deadline(at_ns));
        self.poll_at_ns.store(poll_at_ns, Ordering::Relaxed);
        self.pay(began_ns);
        self.keep_blocked_ns(vcpu);
        // SAFETY: as above; the poll is over.
        let is_stuck = unsafe { &*self.served.get() }.has_received();
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
        if is_stuck {
            // Or it came when the poll did not look any more, and the guest may take its event.
            let again_ns = self.clock.now_ns() + CHECK_NS;
            self.poll_at_ns.fetch_min(again_ns, Ordering::Relaxed);
        }
        // The poll may have begun a recording.
        let tick_at_ns = self.agent.deadline().unwrap_or(NEVER);
        vcpu.tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
        vcpus::repeat_kicks(&self.events);
        self.is_polling.store(false, Ordering::Relaxed);
        if events == self.guests_events.load(Ordering::Relaxed) {
            self.wait_again(vcpu, saved);
        } else {
            // The event ends the wait also where its call was about to be executed again.
            saved.skip_wait(waits_at);
            self.wake(vcpu);
        }
        self.arm(vcpu, true);
    }

    /// Charges the running time since `began_ns`, system time and running time, to the share of
    /// polls.
    pub(super) fn pay(&self, (began_ns, began_running_ns): (u64, u64)) {
        let spent_ns = self.running_ns().saturating_sub(began_running_ns);
        let share_permille = u64::from(self.share_permille.load(Ordering::Relaxed));
        let price_ns = spent_ns.saturating_mul(1000) / share_permille;
        let from_ns = self.paid_at_ns.load(Ordering::Relaxed).max(began_ns);
        self.paid_at_ns.store(from_ns.saturating_add(price_ns), Ordering::Relaxed);
    }

    pub(super) fn running_ns(&self) -> u64 {
        self.agent.platform().running_ns(0)
    }

    /// When the next poll is due, in system time.
    pub(super) fn next_poll_ns(&self) -> u64 {
        if self.is_polling() || self.port().is_none() {
            return NEVER;
        }
        // SAFETY: there is no poll, and none can begin meanwhile.
        let has_received = || unsafe { &*self.served.get() }.has_received();
        let is_stuck = self.is_stuck.load(Ordering::Relaxed);
        let is_noticed = self.is_noticed.load(Ordering::Relaxed);
        let poll_at_ns = match is_noticed || !is_stuck && has_received() {
            true => 0,
            false => self.poll_at_ns.load(Ordering::Relaxed),
        };
        let paid_at_ns = self.paid_at_ns.load(Ordering::Relaxed);
        poll_at_ns.max(paid_at_ns.saturating_sub(SHARE_NS))
    }
}
