//! A vCPU blocks and wakes: where it blocked, and for how long.

use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::ring::kind;

use super::{INTERRUPTED_CYCLES, charge_cycles};
use crate::agent::Agent;
use crate::count::slot::{Live, Owned, Slot};
use crate::ground::platform::{Platform, Registers};
use crate::ground::sync::Ordering;
use crate::ring::Entry;

/// A wait that a recording of running time has in its ring: longer than those of a guest that works. They
/// come fifty times a second at the most, and then there are no ticks beside them.
const LONG_WAIT_NS: u64 = 20_000_000;

impl<'m, P: Platform> Agent<'m, P> {
    /// The guest is about to block on this vCPU. Until [`on_wake`](Self::on_wake) there is no
    /// deadline: an idle guest stays asleep. The running time left to the target is kept.
    ///
    /// `registers` are those of the code that blocks, [`Registers::here`] as a rule: a recording of
    /// blocked time counts it to their stack. `None` where they are not known.
    #[inline]
    pub fn on_block(&self, registers: Option<&Registers>) {
        if let Some((vcpu, slot)) = self.current() {
            let live = slot.live();
            if live.counts_blocked() {
                self.note_block(slot.take_patiently(), slot, live, vcpu, registers);
            }
            let is_asked = !live.is_empty() && self.ring(vcpu).is_some();
            let since_ns = if is_asked { self.platform.now_ns() } else { 0 };
            slot.cells.set_blocked_since(since_ns);
            slot.cells.set_blocked(true);
        }
    }

    /// The guest woke on this vCPU; answers the next deadline as [`on_tick`](Self::on_tick) does.
    pub fn on_wake(&self) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        let live = slot.live();
        let since_ns = slot.cells.take_blocked_since();
        if live.lanes().any(|(_, lane)| lane.has_block()) {
            let cycles = self.platform.cycles();
            let times = self.all_times(vcpu);
            if let Some(ring) = self.ring(vcpu) {
                ring.push(self.platform.now_ns(), Entry::new(kind::WAKE, 0, 0));
            }
            match slot.take_patiently() {
                Some(owned) => owned.end_block(live, times),
                None => {
                    for (_, lane) in live.lanes().filter(|(_, lane)| lane.has_block()) {
                        let weight = lane.take_blocked(times);
                        let uncounted = &lane.counters.blocked_overflow;
                        uncounted.fetch_add(weight, Ordering::Relaxed);
                        lane.close_block();
                    }
                }
            }
            self.charge_since(cycles, live);
        } else if let (Some(since_ns), Some(ring)) = (since_ns, self.ring(vcpu))
            && !live.is_empty()
        {
            let now_ns = self.platform.now_ns();
            let waited_ns = now_ns.saturating_sub(since_ns);
            if waited_ns >= LONG_WAIT_NS {
                ring.push(now_ns, Entry::new(kind::WAKE, waited_ns, 0));
            }
        }
        slot.cells.set_blocked(false);
        self.deadline()
    }

    /// A tick finds the vCPU blocked, and recordings that have not been told: where the block began before them, this is the
    /// first that is seen of it. A slot that is taken is being blocked or woken.
    #[cold]
    #[inline(never)]
    pub(super) fn note_block_under_way(&self, vcpu: u32, registers: Option<&Registers>) {
        if let Some(slot) = self.slot(vcpu)
            && let Some(owned) = slot.take()
        {
            self.note_block(Some(owned), slot, slot.live(), vcpu, registers);
        }
    }

    /// The vCPU blocks in the code of `registers`: keeps its stack for the time to come, for each recording
    /// that counts blocked time and does not know of it. Who has not got the slot knows no stack.
    #[cold]
    #[inline(never)]
    fn note_block(
        &self,
        owned: Option<Owned<'m>>,
        slot: Slot<'m>,
        live: Live<'m>,
        vcpu: u32,
        registers: Option<&Registers>,
    ) {
        let cycles = self.platform.cycles();
        let mut noted = None;
        for (_, lane) in live.lanes().filter(|(_, lane)| lane.misses_block()) {
            let stack = match (&owned, registers) {
                (Some(owned), Some(registers)) => {
                    let mut path = owned.path_cells().begin();
                    if lane.mode() == mode::WALL {
                        path.push(frame_code::BLOCKED);
                    }
                    let (path, _) = self.walk(registers, slot.cells, live.asked(), path);
                    slot.table.keep(&path).unwrap_or(0)
                }
                _ => 0,
            };
            lane.open_block(stack, self.all_times(vcpu));
            noted = Some(stack);
        }
        if let Some(stack) = noted {
            if let Some(ring) = self.ring(vcpu) {
                let block = Entry::new(kind::BLOCK, u64::from(stack), 0);
                ring.push(self.platform.now_ns(), block);
            }
            self.charge_since(cycles, live);
        }
    }

    /// Adds what blocking or waking has cost since `cycles` to the agent's price.
    fn charge_since(&self, cycles: u64, live: Live<'_>) {
        let spent = self.platform.cycles().wrapping_sub(cycles);
        // More than that was somebody else's.
        charge_cycles(live, spent.min(INTERRUPTED_CYCLES));
    }
}
