//! Records that the agent itself writes into the rings, beside ticks and the guest's events.
//!
//! Code on one vCPU writes records into another vCPU's ring here: a ring accepts writers from any
//! context.

use unikprof_proto::ring::kind;

use crate::agent::Agent;
use crate::count::recording;
use crate::count::slot::Now;
use crate::ground::platform::Platform;
use crate::ring::{Entry, Ring};

/// Interval of the records of each vCPU's runstate times. They are written only while the service
/// is polled.
const TIMES_EVERY_NS: u64 = 1_000_000_000;
/// Interval of the records of the time of day.
const CLOCK_EVERY_NS: u64 = 60_000_000_000;
/// Stolen time per interval from which on it gets a record of its own.
const STOLEN_NS: u64 = 10_000_000;

impl<'m, P: Platform + ?Sized> Agent<'m, P> {
    /// A vCPU's ring; `None` if there are no rings or no such vCPU.
    #[inline]
    pub(crate) fn ring(&self, vcpu: u32) -> Option<Ring<'m>> {
        self.rings()?.ring(vcpu)
    }

    /// The time for which the rings hold samples at the present rate, in ns: the minimum over all
    /// vCPUs. `None` if no ring has enough records to tell.
    pub(crate) fn samples_window_ns(&self, now_ns: u64) -> Option<u64> {
        let rings = (0..self.config().vcpus).filter_map(|vcpu| self.ring(vcpu));
        rings.filter_map(|ring| ring.window_ns(now_ns)).min()
    }

    /// The time for which the memory holds new stacks at the present rate, in ns: the minimum over
    /// all vCPUs. `None` if there are no new stacks.
    pub(crate) fn stacks_window_ns(&self, now_ns: u64) -> Option<u64> {
        let slots = self.slots();
        slots.filter_map(|(_, slot)| slot.table.window_ns(now_ns)).min()
    }

    /// Writes a record that concerns all vCPUs into every ring.
    pub(crate) fn note_everywhere(&self, kind: u8, first: u64, second: u64) {
        if self.rings().is_some() {
            let now_ns = self.platform().now_ns();
            for ring in (0..self.config().vcpus).filter_map(|vcpu| self.ring(vcpu)) {
                ring.push(now_ns, Entry::new(kind, first, second));
            }
        }
    }

    /// Writes a record into this vCPU's ring, or into the first ring if the vCPU is not known.
    #[cfg(feature = "noise")]
    pub(crate) fn note_here(&self, kind: u8) {
        if let Some(ring) = self.ring(self.platform().vcpu().unwrap_or(0)) {
            ring.push(self.platform().now_ns(), Entry::new(kind, 0, 0));
        }
    }

    /// The interval at which a thread that is not a vCPU should call
    /// [`note_times`](Self::note_times); `None` while there are no rings or no recording runs.
    #[cfg(feature = "hosted")]
    pub(crate) fn notes_times_every_ns(&self) -> Option<u64> {
        let is_recording = self.slots().any(|(_, slot)| !slot.live().is_empty());
        is_recording.then_some(TIMES_EVERY_NS)
    }

    /// Writes the time of day and the vCPUs' runstate times into the rings, each if its interval
    /// has passed; only the running time if the platform does not know the others. No timer is
    /// armed for it.
    pub(crate) fn note_times(&self, now_ns: u64) {
        let Some(rings) = self.rings() else {
            return;
        };
        if rings.is_clock_due(now_ns, CLOCK_EVERY_NS)
            && let Some(unix_ns) = self.platform().wall_clock_ns()
        {
            self.note_everywhere(kind::CLOCK, unix_ns, 0);
        }
        for (vcpu, slot) in self.slots().filter(|(_, slot)| !slot.live().is_empty()) {
            let ring = rings.ring(vcpu);
            if let Some(ring) = ring.filter(|ring| ring.is_time_due(now_ns, TIMES_EVERY_NS)) {
                // If the slot is busy, the vCPU is waking, and counts the wait itself. The clocks are
                // read before, so that it is busy for a moment only.
                if slot.has_open_block() {
                    let times = recording::times(&self.snapshot(vcpu));
                    let now = Now { ns: self.platform().now_ns(), times, ring: Some(ring) };
                    if let Some(owned) = slot.take().filter(|_| slot.cells.is_blocked()) {
                        owned.count_open_blocks(now);
                    }
                }
                let Some(times) = self.platform().runstate(vcpu) else {
                    let running_ns = self.platform().running_ns(vcpu);
                    ring.push_pair(now_ns, kind::RAN, running_ns, 0);
                    continue;
                };
                // A platform may wait for the vCPU's turn before it reads them.
                let now_ns = self.platform().now_ns();
                let stolen_ns = ring.stolen_since(times.runnable_ns);
                if stolen_ns >= STOLEN_NS {
                    ring.push(now_ns, Entry::new(kind::STOLEN, stolen_ns, 0));
                }
                ring.push_pair(now_ns, kind::RAN, times.running_ns, times.runnable_ns);
                ring.push_pair(now_ns, kind::WAITED, times.blocked_ns, times.offline_ns);
            }
        }
    }
}
