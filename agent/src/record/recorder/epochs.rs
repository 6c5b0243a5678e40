//! Epochs: counts that a flip has separated, and that are kept until a client has stored them.

use unikprof_proto::code::refusal;
use unikprof_proto::ring::kind;

use super::{Outcome, Refused};
use crate::agent::AnyAgent;
use crate::agent::recordings::{Cursor, Epochs, Mark, Phase, Recording};
use crate::count::table::Column;
use crate::ground::text::Text;

/// The maximum number of nodes whose counts one call clears: each is a cache line.
const CLEAR_BUDGET: u32 = 4096;

/// The position of the recording's id in the ids of its epochs; below it they count up from 1. So
/// the recording can be computed from an epoch's id, and consecutive epochs differ in the lowest
/// bit.
const RECORDING_BIT: u32 = 32;

impl Epochs {
    /// Begins with the first epoch of `recording`; returns its id. All columns must be
    /// [clear](Self::clear_some).
    pub(super) fn begin(&mut self, recording: u64) -> u64 {
        self.waiting = 0;
        self.dumping = false;
        self.is_flipping = false;
        self.is_counting = true;
        self.current = (recording << RECORDING_BIT) + 1;
        self.current
    }

    /// The first waiting epoch, and the number of waiting epochs.
    pub(super) fn waiting(&self) -> (u64, u32) {
        (self.current - u64::from(self.waiting), self.waiting)
    }

    pub(super) fn has(&self, epoch: u64) -> bool {
        epoch < self.current && epoch >= self.current - u64::from(self.waiting)
    }

    pub(super) fn mark(&self, epoch: u64) -> Mark {
        self.marks[(epoch & 3) as usize]
    }

    /// Whether a dump may make another epoch.
    pub(super) fn may_flip(&self) -> bool {
        self.dumping || self.waiting == 0
    }

    /// Discards all waiting epochs.
    pub(super) fn discard(&mut self) {
        self.waiting = 0;
    }

    /// The epoch whose counts are in the column of this parity; `None` if nobody needs that column.
    pub(super) fn in_column(&self, parity: u64) -> Option<u64> {
        let (first, waiting) = self.waiting();
        let end =
            first + u64::from(waiting) + u64::from(self.is_counting) + u64::from(self.is_flipping);
        (first..end).find(|epoch| epoch & 1 == parity)
    }

    /// Clears some of the counts of acknowledged epochs; returns whether none are left.
    pub(super) fn clear_some(&mut self, agent: &AnyAgent<'_, '_>) -> bool {
        let mut budget = CLEAR_BUDGET;
        for parity in 0..2 {
            if self.in_column(parity).is_some() {
                continue;
            }
            for (vcpu, slot) in agent.slots() {
                let Some(cells) = slot.recording(self.index) else {
                    continue;
                };
                while let touched @ 1.. = cells.segments.of(parity) {
                    let segment = touched.trailing_zeros();
                    let column = Column::of(self.index, parity);
                    let from = self.clearing.node(vcpu, segment, parity);
                    let (_, next) = slot.table.take_counts(column, segment, from, budget);
                    if let Some(next) = next {
                        self.clearing = Cursor::at(vcpu, segment, parity, next);
                        return false;
                    }
                    let Some(_owned) = slot.take_patiently() else {
                        return false;
                    };
                    cells.segments.clear(parity, 1 << segment);
                    budget = budget.saturating_sub(slot.table.segment_nodes());
                    self.clearing = Cursor::default();
                }
            }
        }
        true
    }
}

impl Recording {
    /// Removes an epoch that a client has stored from the waiting ones. Its counts are cleared bit
    /// by bit, whether or not that client stays connected.
    pub(super) fn acknowledge(&mut self, agent: &AnyAgent<'_, '_>, epoch: u64) -> Outcome<()> {
        let (first, _) = self.epochs.waiting();
        if epoch != first {
            return Outcome::Refused(Refused {
                code: refusal::NO_EPOCH,
                text: Text::format(format_args!(
                    "epoch {first} is older than epoch {epoch}; fetch and acknowledge it first"
                )),
            });
        }
        if !self.epochs.clear_some(agent) {
            return Outcome::NotYet;
        }
        self.epochs.waiting -= 1;
        self.epochs.clear_some(agent);
        if self.epochs.waiting == 0 && self.phase == Phase::Finished {
            self.free(agent);
        }
        Outcome::Done(())
    }

    /// Makes the next epoch current on every vCPU, and with `last` ends the recording there.
    /// Returns whether this is done on all vCPUs; if not, call it again.
    pub(super) fn flip(&mut self, agent: &AnyAgent<'_, '_>, last: bool, server_ns: u64) -> bool {
        let overdue = last && self.epochs.dumping;
        if !self.epochs.clear_some(agent) || overdue && !self.flip(agent, false, server_ns) {
            return false;
        }
        let next = self.epochs.current + 1;
        self.epochs.dumping = !last;
        self.epochs.is_flipping = true;
        for (vcpu, slot) in agent.slots() {
            // A platform may have to wait for the vCPU's times, which are then known for a while:
            // ticks that come meanwhile need the slot.
            agent.snapshot(vcpu);
            let Some(owned) = slot.take_patiently() else {
                return false;
            };
            owned.flip(self.index(), next, last, agent.snapshot(vcpu), agent.ring(vcpu));
        }
        self.set_mark(agent, next, server_ns);
        self.epochs.dumping = false;
        self.epochs.is_flipping = false;
        self.epochs.current = next;
        self.epochs.waiting += 1;
        if last {
            self.epochs.is_counting = false;
            self.phase = Phase::Finished;
            agent.note_everywhere(kind::ENDED, self.id(), self.index() as u64);
        }
        true
    }

    /// Stores when `epoch` begins: now, or when the recording ended by itself, which is noticed
    /// late where the guest polls rarely.
    pub(super) fn set_mark(&mut self, agent: &AnyAgent<'_, '_>, epoch: u64, server_ns: u64) {
        let now_ns = agent.platform().now_ns();
        let at_ns = now_ns.min(self.until_ns());
        let wall_clock_ns = agent.platform().wall_clock_ns();
        self.epochs.marks[(epoch & 3) as usize] = Mark {
            at_ns,
            wall_clock_ns: wall_clock_ns.map(|ns| ns.saturating_sub(now_ns - at_ns)),
            server_ns,
            gaps: agent.gaps().wrapping_sub(self.gaps_before),
        };
    }
}
