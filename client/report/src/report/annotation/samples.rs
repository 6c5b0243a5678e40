//! The samples of instructions and lines.

use super::super::Report;
use super::super::shares::Shares;
use super::super::uncertainty::{Recorded, Unplaced};
use super::instructions::{self, Instruction};
use unikprof_profile::profile::{Frame, FrameId, NodeId, SpecialFrame};
use unikprof_profile::symbols::MappedAddress;

pub(super) struct Counted {
    pub(super) instructions: Vec<Shares>,
    pub(super) lines: Vec<Shares>,
    /// All of them.
    pub(super) code: Shares,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    own: u64,
    total: u64,
    /// Of the total, late samples.
    late: u64,
}

/// Counts the samples that the report shows. `line_of` has each instruction's line, of so many.
pub(super) fn count(
    report: &Report<'_>,
    frames: &[(FrameId, MappedAddress)],
    instructions: &[Instruction],
    line_of: &[usize],
    lines: usize,
) -> Counted {
    let profile = report.symbolized.profile();
    let mut instruction_of: Vec<Option<usize>> = vec![None; profile.frames().len()];
    for (frame, MappedAddress { address, .. }) in frames {
        instruction_of[frame.index()] = instructions::find(instructions, *address);
    }
    // Instructions, lines and the whole are numbered one after the other.
    let whole = instructions.len() + lines;
    let parts_of = |at: usize| [at, instructions.len() + line_of[at], whole];
    let hits = |stack: NodeId| {
        let mut stack = profile.stack(stack).map(|frame| instruction_of[frame.index()]);
        let leaf = stack.next().flatten();
        let own: Vec<usize> = leaf.into_iter().flat_map(parts_of).collect();
        let mut all = own.clone();
        all.extend(stack.flatten().flat_map(parts_of));
        all.sort_unstable();
        all.dedup();
        (own, all)
    };
    let mut sums = vec![Sum::default(); whole + 1];
    for sample in report.shown_samples() {
        let (own, all) = hits(sample.node);
        let leaf = profile.stack(sample.node).next();
        let is_late =
            leaf.map(|leaf| profile.frame(leaf)) == Some(Frame::Special(SpecialFrame::Late));
        for at in own {
            let own = &mut sums[at].own;
            *own = own.saturating_add(sample.count);
        }
        for at in all {
            let Sum { total, late, .. } = &mut sums[at];
            *total = total.saturating_add(sample.count);
            if is_late {
                *late = late.saturating_add(sample.count);
            }
        }
    }
    let recorded = Recorded {
        count: report.weights.recorded,
        unit: profile.recording().unit(),
        unplaced: Unplaced::of(profile),
    };
    let counts = |sum: &Sum| Shares {
        own: sum.own,
        total: sum.total,
        own_share: recorded.share(sum.own, 0),
        total_share: recorded.share(sum.total, sum.late),
    };
    let mut all: Vec<Shares> = sums.iter().map(counts).collect();
    let code = all.pop().unwrap_or_default();
    let lines = all.split_off(instructions.len());
    Counted { instructions: all, lines, code }
}
