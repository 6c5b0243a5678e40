//! Blocked time: the stack that a vCPU blocks on, and for how long.
//!
//! Why: docs/design/decisions.md#blocked-time-is-charged-at-the-wake-and-at-a-flip,
//! docs/design/decisions.md#the-samplers-timer-is-disarmed-in-a-wait,
//! docs/design/decisions.md#running-and-blocked-time-have-targets-of-their-own.

use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::message::Counter;
use unikprof_proto::ring::{Wait, outcome};

use super::{INTERRUPTED_CYCLES, charge_cycles};
use crate::agent::Agent;
use crate::count::recording::RecordingCells;
use crate::count::slot::{Live, Owned, Slot};
use crate::ground::platform::{Platform, Registers};

/// The shortest wait that is written to the ring if only running time is recorded. There are at
/// most fifty a second.
const LONG_WAIT_NS: u64 = 20_000_000;

impl<'m, P: Platform> Agent<'m, P> {
    /// Call it when the guest is about to block on this vCPU. There is no deadline until
    /// [`on_wake`](Self::on_wake), so an idle guest stays asleep; the running time left to the
    /// target is kept. Program the guest's own deadline, or disarm the timer: where the sampler's
    /// ends a wait on a contended CPU, the rest of the wait is stolen time.
    ///
    /// `registers` are those of the code that blocks, usually [`Registers::here`]: recordings of
    /// blocked time charge it to their stack. `None` if they are not known.
    #[inline]
    pub fn on_block(&self, registers: Option<&Registers>) {
        if let Some((vcpu, slot)) = self.current() {
            let live = slot.live();
            if slot.counts_blocked(live) {
                self.account_block(vcpu, slot, registers);
            }
            slot.cells.set_blocked_since(self.platform.now_ns());
            slot.cells.set_blocked();
            if registers.is_some() && slot.cells.wants_snapshot() {
                self.take_snapshot(slot, registers);
            }
        }
    }

    /// Call it when the guest has woken on this vCPU. Returns the next deadline as
    /// [`on_tick`](Self::on_tick) does.
    pub fn on_wake(&self) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        // From here on a tick opens no block, so that none stays open.
        slot.cells.set_running(false);
        let live = slot.live();
        let since_ns = slot.cells.take_blocked_since();
        if slot.each(live).any(|(_, recording)| recording.has_block()) {
            self.account_wake(vcpu, slot, live);
        } else {
            if let Some(ring) = self.ring(vcpu)
                && since_ns != 0
                && !live.is_empty()
                && !slot.counts_blocked(live)
            {
                let now_ns = self.platform.now_ns();
                let waited_ns = now_ns.saturating_sub(since_ns);
                if waited_ns >= LONG_WAIT_NS {
                    let wait = Wait {
                        is_first: true,
                        is_last: true,
                        length_ns: waited_ns,
                        ..Wait::default()
                    };
                    ring.push_wait(now_ns, 0, 0, 0, wait);
                }
            }
            slot.cells.set_running(true);
        }
        self.deadline()
    }

    /// Opens a block for each recording of blocked time.
    #[cold]
    #[inline(never)]
    fn account_block(&self, vcpu: u32, slot: &'m Slot<'m>, registers: Option<&Registers>) {
        let cycles = self.platform.cycles();
        let owned = slot.take_for_accounting();
        if slot.cells.has_uncounted_wait()
            && let Some(owned) = &owned
        {
            owned.end_block(slot.live(), self.now(vcpu));
            slot.cells.set_running(true);
        }
        self.note_block(owned.as_ref(), slot, vcpu, registers);
        drop(owned);
        self.count_deferred(vcpu, slot);
        self.charge_since(cycles, slot);
    }

    /// Counts the vCPU's blocked time. If the slot stays busy, the blocks stay open: the next tick,
    /// flip or block counts them, and the blocked time does not advance until then.
    #[cold]
    #[inline(never)]
    fn account_wake(&self, vcpu: u32, slot: &'m Slot<'m>, live: Live) {
        let cycles = self.platform.cycles();
        let now = self.now(vcpu);
        let owned = slot.take_for_accounting();
        if let Some(owned) = &owned {
            owned.end_block(live, now);
        }
        slot.cells.set_running(owned.is_some());
        drop(owned);
        self.count_deferred(vcpu, slot);
        self.charge_since(cycles, slot);
    }

    /// Counts the samples of ticks that came while this vCPU's block or allocation accounting owned
    /// the slot.
    pub(super) fn count_deferred(&self, vcpu: u32, slot: &'m Slot<'m>) {
        while slot.cells.has_deferred() {
            let owned = slot.take_for_accounting();
            let now_ns = self.platform.now_ns();
            let Some(owned) = owned else {
                let recordings = slot.drop_deferred();
                for (_, recording) in slot.each(recordings) {
                    recording.counters.add_shared(Counter::Lost, 1);
                }
                self.write_no_sample(vcpu, slot, now_ns, outcome::LOST, recordings.bits());
                continue;
            };
            if let Some((recorded, recordings, sample)) = owned.record_deferred() {
                self.write_sample(vcpu, slot, now_ns, recorded, recordings, sample.late);
            }
        }
    }

    /// Opens the block for each recording that began after the vCPU had blocked, when a tick finds
    /// it blocked. The earlier part of the wait is not known. If the slot is busy, the code that
    /// blocks or wakes is using it.
    #[cold]
    #[inline(never)]
    pub(super) fn note_block_under_way(
        &self,
        vcpu: u32,
        slot: &'m Slot<'m>,
        registers: Option<&Registers>,
    ) {
        let mut all = slot.each(slot.live());
        if all.any(|(_, recording)| recording.misses_block())
            && let Some(owned) = slot.take()
        {
            self.note_block(Some(&owned), slot, vcpu, registers);
        }
    }

    /// Opens a block on the stack of `registers` for each recording that counts blocked time and
    /// has no open block. Without the slot the stack is not known.
    fn note_block(
        &self,
        owned: Option<&Owned<'m>>,
        slot: &'m Slot<'m>,
        vcpu: u32,
        registers: Option<&Registers>,
    ) {
        let live = slot.live();
        let misses = |(_, recording): &(usize, &RecordingCells)| recording.misses_block();
        for (index, recording) in slot.each(live).filter(misses) {
            let stack = match (owned, registers) {
                (Some(owned), Some(registers)) => {
                    let mut path = owned.path_cells().begin();
                    if recording.mode() == mode::WALL {
                        path.push(frame_code::BLOCKED);
                    }
                    let asked = slot.needs(live, false).asked;
                    self.walk(registers, slot.cells, asked, &mut path);
                    owned.keep_for(recording, &path).unwrap_or(0)
                }
                _ => 0,
            };
            let now = self.now(vcpu);
            // A block without a stack is counted as waits that are not reported.
            if let Some(owned) = owned.filter(|_| stack != 0) {
                owned.count_other_waits(index, recording, now);
            }
            recording.open_block(stack, now.ns, now.times);
        }
    }

    /// Adds the cost of `work`, which arms or disarms this vCPU's timer at a block or a wake, to the
    /// agent's cost.
    #[cfg(any(feature = "hosted", feature = "xen"))]
    pub(crate) fn charge_arming<T>(&self, work: impl FnOnce() -> T) -> T {
        let cycles = self.platform.cycles();
        let answer = work();
        if let Some((_, slot)) = self.current() {
            self.charge_since(cycles, slot);
        }
        answer
    }

    /// Adds the cost of blocking or waking since `cycles` to the agent's cost.
    fn charge_since(&self, cycles: u64, slot: &Slot<'_>) {
        let spent = self.platform.cycles().wrapping_sub(cycles);
        // Cycles beyond this limit were used by another vCPU.
        charge_cycles(slot, slot.live(), spent.min(INTERRUPTED_CYCLES));
    }
}
