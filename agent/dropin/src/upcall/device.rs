//! The network device: whether it is still the profiler's, and what it has sent.
#![allow(unsafe_code, reason = "the tables are the guest's, and the service is the poll's")]

use core::sync::atomic::{AtomicBool, Ordering};

use xen_sys_lite::events::{Binding, Port};

use super::{CHECK_NS, Running, timer};
use crate::machine::{self, descriptors};
use crate::served::Served;
use crate::vcpus::{self, NEVER};

/// The device's port is proven to be the device's at this interval.
const PROOF_NS: u64 = 1_000_000_000;

impl Running {
    /// Connects the device again, by `reconnect`, which is told whether the domain is a new one,
    /// and says when it has forgotten the old one. After an error there is no network. Interrupts
    /// are off, and no poll is under way.
    pub(crate) fn reconnect<T, E>(
        &self,
        reconnect: impl FnOnce(&mut Served, &AtomicBool) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_restored() {
            self.follow_restore();
        }
        self.port.store(0, Ordering::Relaxed);
        // SAFETY: there is no poll, and none begins: interrupts are off.
        let result = reconnect(unsafe { &mut *self.served.get() }, &self.is_new_domain);
        self.go_on(result.is_ok());
        result
    }

    pub(super) fn port(&self) -> Option<Port> {
        let port = self.port.load(Ordering::Relaxed);
        (port != 0).then_some(Port(port))
    }

    /// Whether a port is connected as the device's was.
    pub(super) fn is_ours(&self, port: Port) -> bool {
        let binding = self.events.status(port).map(|(binding, _)| binding);
        let [domain, far_port] = self.backend.each_ref().map(|it| it.load(Ordering::Relaxed));
        binding.is_ok_and(|binding| {
            matches!(binding, Binding::Interdomain { domain: of, port }
                if u32::from(of) == domain && port == far_port)
        })
    }

    /// Looks whether the device has sent an event, which it returns, and when to look again.
    pub(super) fn look(&self) -> bool {
        let port = self.port();
        let (is_masked, is_pending) = port.map_or((false, false), |port| {
            (self.events.is_masked(port), self.events.is_pending(port))
        });
        // Before an event is taken, which could be another's, and now and then.
        let proof_at_ns = self.proof_at_ns.load(Ordering::Relaxed);
        let now_ns = self.clock.now_ns();
        let is_proven = (now_ns..=now_ns + PROOF_NS).contains(&proof_at_ns);
        if is_masked || is_pending || !is_proven {
            if self.is_restored() {
                machine::debug_line(
                    "the guest was restored: no network before unikprof_dropin_resume()",
                );
                self.follow_restore();
                return false;
            }
            if self.has_stepped_back() {
                self.follow_clock();
            }
            self.put_off_proof();
            vcpus::repeat_kicks(&self.events);
            // SAFETY: interrupts are off; the guest runs with this table.
            unsafe { descriptors::intercept_faults() };
            if port.is_some_and(|port| !self.is_ours(port)) {
                // The backend has gone.
                self.port.store(0, Ordering::Relaxed);
                return false;
            }
        }
        let Some(port) = port else {
            return false;
        };
        if is_masked {
            // As in `begin`.
            let _ = self.events.unmask(port);
        }
        if is_pending && self.events.take_pending(port) {
            self.is_noticed.store(true, Ordering::Relaxed);
        }
        if self.is_past(self.check_at_ns.load(Ordering::Relaxed)) {
            let is_upcall_pending =
                vcpus::first().info(self.shared).evtchn_upcall_pending.load(Ordering::SeqCst) != 0;
            let next_ns = match is_upcall_pending {
                true => self.clock.now_ns() + CHECK_NS,
                false => NEVER,
            };
            self.check_at_ns.store(next_ns, Ordering::Relaxed);
        }
        is_pending
    }

    /// Whether the domain is another one than at the last proof: by its number, or because its time
    /// began anew and the device's port is gone, as it is in every new domain.
    pub(super) fn is_restored(&self) -> bool {
        self.domain_id() != self.domain.load(Ordering::Relaxed)
            || self.has_stepped_back() && self.port().is_some_and(|port| !self.is_ours(port))
    }

    /// Whether it is earlier than at the last proof. A starved host's clock steps back too, and
    /// more often than domains of one number follow each other.
    pub(super) fn has_stepped_back(&self) -> bool {
        self.proof_at_ns.load(Ordering::Relaxed) > self.clock.now_ns() + PROOF_NS
    }

    /// What was to happen at times of a clock that has stepped back.
    pub(super) fn follow_clock(&self) {
        let tick_at_ns = self.agent.deadline().unwrap_or(NEVER);
        vcpus::first().tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
        self.paid_at_ns.store(0, Ordering::Relaxed);
        self.check_at_ns.store(NEVER, Ordering::Relaxed);
        self.is_noticed.store(true, Ordering::Relaxed);
    }

    pub(super) fn domain_id(&self) -> u32 {
        self.leaves.domain().map_or(u32::MAX, u32::from)
    }

    pub(super) fn put_off_proof(&self) {
        let proof_at_ns = self.clock.now_ns() + PROOF_NS;
        self.proof_at_ns.store(proof_at_ns, Ordering::Relaxed);
    }

    /// The domain was restored from a save: what Xen knew of the profiler is gone. Sampling goes
    /// on.
    pub(super) fn follow_restore(&self) {
        self.port.store(0, Ordering::Relaxed);
        self.is_new_domain.store(true, Ordering::Relaxed);
        self.domain.store(self.domain_id(), Ordering::Relaxed);
        self.put_off_proof();
        // Another host's processor counts at another rate.
        let cycles_per_ns = timer::cycles_per_ns(&self.clock);
        self.cycles_per_ns.store(cycles_per_ns, Ordering::Relaxed);
        self.agent.resume();
        let first = vcpus::first();
        self.wake(first);
        self.ask_blocked_ns(first);
        vcpus::others().iter().for_each(|it| it.connect(&self.events));
        self.follow_clock();
        self.poll_at_ns.store(NEVER, Ordering::Relaxed);
        self.is_owed.store(false, Ordering::Relaxed);
    }
}
