//! What runs in some parts of the time and not in others.

use std::collections::HashMap;

use super::super::uncertainty::distinct_labels;
use super::{Subject, Time};
use unikprof_profile::profile::NodeId;
use unikprof_profile::timeline::Window;

/// Samples, by the functions on their stacks.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) samples: f64,
    by_label: HashMap<u32, f64>,
    /// Those of the function itself.
    own: HashMap<u32, f64>,
}

impl Tally {
    /// Of these stacks with their samples.
    pub(super) fn of(subject: &Subject<'_>, stacks: &HashMap<NodeId, u64>) -> Tally {
        let mut tally = Tally::default();
        for (stack, count) in stacks {
            tally.samples += *count as f64;
            let labels = distinct_labels(subject.report, *stack);
            if let Some(innermost) = labels.first() {
                *tally.own.entry(*innermost).or_default() += *count as f64;
            }
            for label in labels {
                *tally.by_label.entry(label).or_default() += *count as f64;
            }
        }
        tally
    }

    pub(super) fn share(&self, label: u32) -> f64 {
        let count = self.by_label.get(&label).copied().unwrap_or(0.0);
        if self.samples > 0.0 { count / self.samples } else { 0.0 }
    }

    /// The function whose share here exceeds its share there most, by at least this much. Of
    /// functions that exceed it by nearly as much, which call each other, the innermost.
    pub(super) fn special(&self, there: &Tally, least: f64) -> Option<u32> {
        let excess = |label: u32| self.share(label) - there.share(label);
        let most = self.by_label.keys().map(|l| excess(*l)).max_by(f64::total_cmp)?;
        if most < least {
            return None;
        }
        let near = self.by_label.keys().filter(|l| excess(**l) >= 0.9 * most);
        // An inner function has no more samples than the one that calls it.
        let outer = |label: u32| {
            let total = self.share(label) + there.share(label);
            (total, -self.own(label), label)
        };
        let first = |a: &&u32, b: &&u32| {
            let (a, b) = (outer(**a), outer(**b));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
        };
        near.min_by(first).copied()
    }

    /// The samples of a function itself.
    pub(super) fn own(&self, label: u32) -> f64 {
        self.own.get(&label).copied().unwrap_or(0.0)
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.by_label.iter().map(|(label, count)| (*label, *count))
    }
}

/// The stacks that were sampled in each of some windows, which are in order and apart, and how
/// often.
pub(super) fn stacks_in(
    subject: &Subject<'_>,
    time: &Time<'_>,
    windows: &[Window],
) -> Vec<HashMap<NodeId, u64>> {
    let mut all = vec![HashMap::new(); windows.len()];
    let mut at = 0;
    for tick in subject.ticks(time) {
        while windows.get(at).is_some_and(|w| w.to_ns <= tick.at_ns) {
            at += 1;
        }
        let Some(window) = windows.get(at) else { break };
        if let Some(stack) = tick.stack.filter(|_| window.contains(tick.at_ns)) {
            *all[at].entry(stack).or_default() += 1;
        }
    }
    all
}
