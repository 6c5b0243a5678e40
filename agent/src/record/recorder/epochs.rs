//! Epochs: the counts that a flip has set apart, until a client has them safe.

use unikprof_proto::code::refusal;
use unikprof_proto::ring::kind;

use super::recording::{Mark, Phase, Recording};
use super::{Outcome, Refused};
use crate::agent::Agent;
use crate::count::table::Column;
use crate::ground::platform::Platform;
use crate::ground::text::Text;

/// Nodes whose counts one call clears at the most: each is a cache line.
const CLEAR_BUDGET: u32 = 16_384;

/// Where a recording's id stands in the ids of its epochs; below it they count up from 1. So an epoch's
/// id tells its recording, and neighbours differ in the lowest bits.
const RECORDING_BIT: u32 = 32;

/// Where the clearing of a column goes on.
#[derive(Clone, Copy, Debug)]
struct Clearing {
    column: Column,
    vcpu: u32,
    node: u32,
}

/// The epochs of one recording.
#[derive(Debug)]
pub(super) struct Epochs {
    lane: usize,
    /// The epoch that is counted.
    current: u64,
    /// How many epochs before it wait.
    waiting: u32,
    /// A dump's flip that a tick was in the way of.
    dumping: bool,
    /// What is left to clear, by the column's parity: no epoch may use it before.
    clearing: [Option<Clearing>; 2],
    marks: [Mark; 4],
}

impl Epochs {
    pub(super) fn new(lane: usize) -> Self {
        Self {
            lane,
            current: 0,
            waiting: 0,
            dumping: false,
            clearing: [None; 2],
            marks: [Mark::default(); 4],
        }
    }

    /// Begins with the first epoch of `recording`; answers its id. With `cleared` the tables were.
    pub(super) fn begin(&mut self, recording: u64, cleared: bool) -> u64 {
        if cleared {
            self.clearing = [None; 2];
        }
        self.waiting = 0;
        self.dumping = false;
        self.current = (recording << RECORDING_BIT) + 1;
        self.current
    }

    /// The first epoch that waits, and how many do.
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

    /// Forgets all that waits.
    pub(super) fn discard(&mut self) {
        self.waiting = 0;
        self.clear(self.current);
        self.clear(self.current + 1);
    }

    /// Clears the column of `epoch` from here on, bit by bit.
    fn clear(&mut self, epoch: u64) {
        self.clearing[(epoch & 1) as usize] = Some(Clearing {
            column: Column::of(self.lane, epoch),
            vcpu: 0,
            node: 0,
        });
    }

    /// Clears some of what was acknowledged; answers whether nothing is left to clear.
    pub(super) fn clear_some<P: Platform>(&mut self, agent: &Agent<'_, P>) -> bool {
        let mut budget = CLEAR_BUDGET;
        for place in &mut self.clearing {
            let Some(clearing) = place else {
                continue;
            };
            while let Some(slot) = agent.slot(clearing.vcpu) {
                let table = &slot.table;
                if let Some(next) = table.clear_column(clearing.column, clearing.node, budget) {
                    clearing.node = next;
                    return false;
                }
                budget = budget.saturating_sub(table.used().saturating_sub(clearing.node));
                clearing.vcpu += 1;
                clearing.node = 0;
            }
            *place = None;
        }
        true
    }
}

impl Recording {
    /// Forgets an epoch that is safe with a client. From here on it does not wait any more; its
    /// counts are cleared bit by bit, whether or not that client stays.
    pub(super) fn acknowledge<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        epoch: u64,
    ) -> Outcome<()> {
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
        self.epochs.clear(epoch);
        self.epochs.waiting -= 1;
        self.epochs.clear_some(agent);
        if self.epochs.waiting == 0 && self.phase == Phase::Finished {
            self.free(agent);
        }
        Outcome::Done(())
    }

    /// Makes the next epoch current on every vCPU, and with `last` ends the recording there. Answers
    /// whether all are done; if not, ask again.
    pub(super) fn flip<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        last: bool,
        server_ns: u64,
    ) -> bool {
        let overdue = last && self.epochs.dumping;
        if !self.epochs.clear_some(agent) || overdue && !self.flip(agent, false, server_ns) {
            return false;
        }
        let next = self.epochs.current + 1;
        self.epochs.dumping = !last;
        for (vcpu, slot) in agent.slots() {
            let Some(owned) = slot.take_patiently() else {
                return false;
            };
            owned.flip(self.lane(), next, last, agent.snapshot(vcpu));
        }
        self.set_mark(agent, next, server_ns);
        self.epochs.dumping = false;
        self.epochs.current = next;
        self.epochs.waiting += 1;
        if last {
            self.phase = Phase::Finished;
            agent.note_everywhere(kind::ENDED, self.id(), self.lane() as u64);
        }
        true
    }

    pub(super) fn set_mark<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        epoch: u64,
        server_ns: u64,
    ) {
        self.epochs.marks[(epoch & 3) as usize] = Mark {
            at_ns: agent.platform().now_ns(),
            wall_clock_ns: agent.platform().wall_clock_ns(),
            server_ns,
            gaps: agent.gaps().wrapping_sub(self.gaps_before),
        };
    }
}
