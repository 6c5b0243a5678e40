//! Epochs: the counts that a flip has set apart, until a client has them safe.

use unikprof_proto::code::refusal;

use super::{Clearing, Mark, Outcome, Phase, Recorder, Refused};
use crate::agent::Agent;
use crate::platform::Platform;
use crate::table::Column;
use crate::text::Text;

/// Nodes whose counts one call clears at the most: each is a cache line.
const CLEAR_BUDGET: u32 = 16_384;

impl Recorder {
    /// Forgets an epoch that is safe with a client. From here on it does not wait any more; its
    /// counts are cleared bit by bit, whether or not that client stays.
    pub(crate) fn acknowledge<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        epoch: u64,
    ) -> Outcome<()> {
        if !self.has(epoch) {
            return Outcome::Refused(self.no_epoch(epoch));
        }
        if epoch != self.epoch - u64::from(self.waiting) {
            return Outcome::Refused(Refused {
                code: refusal::NO_EPOCH,
                text: Text::format(format_args!(
                    "epoch {} is older than epoch {epoch}; fetch and acknowledge it first",
                    self.epoch - u64::from(self.waiting)
                )),
            });
        }
        if !self.clear_some(agent) {
            return Outcome::NotYet;
        }
        self.clearing = Some(Clearing {
            epoch,
            vcpu: 0,
            node: 0,
        });
        self.waiting -= 1;
        self.clear_some(agent);
        if self.waiting == 0 && self.phase == Phase::Finished {
            self.phase = Phase::Idle;
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
        if !self.clear_some(agent) || last && self.dumping && !self.flip(agent, false, server_ns) {
            return false;
        }
        let next = self.epoch + 1;
        self.dumping = !last;
        for (vcpu, slot) in agent.slots() {
            let Some(owned) = slot.take_patiently() else {
                return false;
            };
            owned.flip(next, last, agent.snapshot(vcpu));
        }
        self.set_mark(agent, next, server_ns);
        self.dumping = false;
        self.epoch = next;
        self.waiting += 1;
        if last {
            self.phase = Phase::Finished;
        }
        true
    }

    /// Clears some of what was acknowledged; answers whether nothing is left to clear.
    pub(super) fn clear_some<P: Platform>(&mut self, agent: &Agent<'_, P>) -> bool {
        let Some(clearing) = &mut self.clearing else {
            return true;
        };
        let column = Column::of(clearing.epoch);
        let mut budget = CLEAR_BUDGET;
        while let Some(slot) = agent.slot(clearing.vcpu) {
            if let Some(next) = slot.table.clear_column(column, clearing.node, budget) {
                clearing.node = next;
                return false;
            }
            budget = budget.saturating_sub(slot.table.used().saturating_sub(clearing.node));
            clearing.vcpu += 1;
            clearing.node = 0;
        }
        self.clearing = None;
        true
    }

    pub(super) fn set_mark<P: Platform>(
        &mut self,
        agent: &Agent<'_, P>,
        epoch: u64,
        server_ns: u64,
    ) {
        self.marks[(epoch & 3) as usize] = Mark {
            at_ns: agent.platform().now_ns(),
            wall_clock_ns: agent.platform().wall_clock_ns(),
            server_ns,
            gaps: agent.gaps().wrapping_sub(self.gaps_before),
        };
    }
}
