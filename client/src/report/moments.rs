//! What was counted, sample by sample in the order of time.

use std::collections::BTreeMap;

use super::{Report, TimelineView};
use crate::profile::{Mode, NodeId};
use crate::timeline::Outcome;

/// A sample or a wait that a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// On the guest's monotonic clock, in ns; of a wait its beginning.
    pub(super) at_ns: u64,
    pub(super) vcpu: u32,
    pub(super) stack: NodeId,
    /// What it counts in the report, in the mode's unit; a wait that is shorter than a period may count nothing.
    pub(super) count: u64,
    /// How long a wait was; `None` for a sample.
    pub(super) blocked_ns: Option<u64>,
}

/// The samples and waits with a stack that the filters keep, of all vCPUs, in the order of time. They count what they
/// count in a [profile](crate::timeline::Timeline::profile) of the same time.
pub(super) fn moments<'r>(
    report: &'r Report<'_>,
    view: &'r TimelineView<'_>,
) -> impl Iterator<Item = Moment> + 'r {
    let info = report.symbolized.profile().recording();
    let (mode, period_ns) = (info.mode, info.period_ns);
    let ticks = view
        .timeline
        .ticks(&view.of, mode, view.window, info.inside());
    // By vCPU: a period of blocked time counts once, whichever waits it is made of.
    let mut blocked: BTreeMap<u32, u64> = BTreeMap::new();
    let periods = move |ns: u64| ns.checked_div(period_ns).unwrap_or(0);
    ticks.filter_map(move |tick| {
        let (count, blocked_ns) = match tick.outcome {
            Outcome::Blocked { ns } => {
                let sum = blocked.entry(tick.vcpu).or_default();
                let before = std::mem::replace(sum, sum.saturating_add(ns));
                let count = match mode {
                    Mode::Wall => periods(*sum) - periods(before),
                    _ => ns,
                };
                (count, Some(ns))
            }
            _ => (1, None),
        };
        let stack = tick.stack.filter(|stack| report.weights.keeps(*stack))?;
        Some(Moment {
            at_ns: tick.at_ns,
            vcpu: tick.vcpu,
            stack,
            count,
            blocked_ns,
        })
    })
}
