//! What the agent itself writes into the rings, beside the ticks.
//!
//! Records of one vCPU are written by others here: a ring takes writers from anywhere.

use unikprof_proto::ring::kind;

use crate::agent::Agent;
use crate::ground::platform::{Platform, Runstate};
use crate::ring::{Entry, Ring};

/// How a vCPU's time went is written once a second, as far as the agent is served.
const TIMES_EVERY_NS: u64 = 1_000_000_000;
/// The time of day is written once a minute.
const CLOCK_EVERY_NS: u64 = 60_000_000_000;
/// Of what others took in a second, so much is told of on its own.
const STOLEN_NS: u64 = 10_000_000;

impl<'m, P: Platform> Agent<'m, P> {
    /// A vCPU's ring, where there are rings.
    #[inline]
    pub(crate) fn ring(&self, vcpu: u32) -> Option<Ring<'m>> {
        self.rings()?.ring(vcpu)
    }

    /// Notes in every ring what concerns all vCPUs.
    pub(crate) fn note_everywhere(&self, kind: u8, first: u64, second: u64) {
        if self.rings().is_some() {
            let now_ns = self.platform().now_ns();
            for ring in (0..self.config().vcpus).filter_map(|vcpu| self.ring(vcpu)) {
                ring.push(now_ns, Entry::new(kind, first, second));
            }
        }
    }

    /// Notes in this vCPU's ring, or the first one where it is not known.
    #[cfg(feature = "noise")]
    pub(crate) fn note_here(&self, kind: u8) {
        if let Some(ring) = self.ring(self.platform().vcpu().unwrap_or(0)) {
            ring.push(self.platform().now_ns(), Entry::new(kind, 0, 0));
        }
    }

    /// How often times should be [noted](Self::note_times) now, by who can wake without waking the guest;
    /// `None` while nothing is recorded that needs them.
    #[cfg(feature = "hosted")]
    pub(crate) fn notes_times_every_ns(&self) -> Option<u64> {
        let is_recording = || self.slots().any(|(_, slot)| !slot.live().is_empty());
        (self.rings().is_some() && is_recording()).then_some(TIMES_EVERY_NS)
    }

    /// Notes how the vCPUs' times have gone on, where that was not done for a while. Nothing wakes for it.
    pub(crate) fn note_times(&self, now_ns: u64) {
        let Some(rings) = self.rings() else {
            return;
        };
        if rings.is_clock_due(now_ns, CLOCK_EVERY_NS)
            && let Some(unix_ns) = self.platform().wall_clock_ns()
        {
            self.note_everywhere(kind::CLOCK, unix_ns, 0);
        }
        for (vcpu, _) in self.slots().filter(|(_, slot)| !slot.live().is_empty()) {
            let ring = rings.ring(vcpu);
            if let Some(ring) = ring.filter(|ring| ring.is_time_due(now_ns, TIMES_EVERY_NS)) {
                let times = self.platform().runstate(vcpu).unwrap_or_else(|| Runstate {
                    running_ns: self.platform().running_ns(vcpu),
                    blocked_ns: self.platform().blocked_ns(vcpu),
                    ..Runstate::default()
                });
                let stolen_ns = ring.stolen_since(times.runnable_ns);
                if stolen_ns >= STOLEN_NS {
                    ring.push(now_ns, Entry::new(kind::STOLEN, stolen_ns, 0));
                }
                ring.push_pair(now_ns, kind::RAN, times.running_ns, times.runnable_ns);
                ring.push_pair(now_ns, kind::WAITED, times.blocked_ns, times.offline_ns);
            }
        }
    }

    /// Whether the stacks may be forgotten, which the rings' samples name: where there are no rings, or little
    /// room is left.
    pub(crate) fn may_forget_stacks(&self) -> bool {
        let is_filling = || {
            self.slots()
                .any(|(_, slot)| slot.table.used() > slot.table.capacity() / 2)
        };
        self.rings().is_none() || is_filling()
    }

    /// Forgets all stacks, and what the rings hold: it named them. Only while nothing is recorded. Who is reading a
    /// ring and its stacks meanwhile, in another conversation or as a crash on another vCPU, is told by
    /// [`cleared`](Agent::cleared).
    pub(crate) fn forget_stacks(&self) {
        for (vcpu, slot) in self.slots() {
            if let Some(ring) = self.ring(vcpu).filter(|_| slot.table.used() > 0) {
                ring.forget();
            }
        }
        self.count_cleared();
        for (_, slot) in self.slots() {
            slot.table.clear();
        }
    }
}
