//! The stacks merged by name: frames of the same function under the same callers are one.
//!
//! The merged tree is never built. It is walked depth first, and subtrees too small to be shown are
//! skipped, so its size does not matter.

use unikprof_profile::profile::{ChildLists, FrameId, NodeId, Sample};

use super::Report;
use super::labels::LabelId;

/// What a walk meets.
pub(super) trait Visitor {
    /// Where a function that is entered next is in the profile's tree.
    fn places(&mut self, _places: &[InlinedNode]) {}
    /// A function with the samples that end in it and those that go through it.
    fn enter(&mut self, label: LabelId, own: u64, total: u64);
    /// A function that was not entered: it has fewer samples than asked for.
    fn skipped(&mut self, _total: u64) {}
    /// Back to the caller of the function that was entered last.
    fn leave(&mut self, label: LabelId);
}

/// The stacks of a report, to be walked from their roots.
pub(super) struct Merged<'r, 'a> {
    report: &'r Report<'a>,
    /// By node: the samples of stacks that end there or deeper.
    pub(super) totals: Vec<u64>,
    children: ChildLists,
}

/// A profile's node, at one of the functions of its frame.
#[derive(Clone, Copy)]
pub(super) struct InlinedNode {
    pub(super) label: LabelId,
    pub(super) node: NodeId,
    /// How many functions were inlined here and come below this one.
    pub(super) inner: u32,
}

/// One function on the way from the root to where the walk is.
struct Step {
    label: LabelId,
    /// Where its callees begin in the list of places, and the next one to visit.
    begin: usize,
    next: usize,
}

impl<'r, 'a> Merged<'r, 'a> {
    /// The stacks that are shown and have samples.
    pub(super) fn of(report: &'r Report<'a>) -> Merged<'r, 'a> {
        Merged::of_samples(report, report.shown_samples())
    }

    /// The stacks of these samples.
    pub(super) fn of_samples<'s>(
        report: &'r Report<'a>,
        samples: impl Iterator<Item = &'s Sample>,
    ) -> Merged<'r, 'a> {
        let totals = totals(report, samples);
        let children =
            ChildLists::of(report.symbolized.profile().tree(), |node| totals[node.index()] != 0);
        Merged { report, totals, children }
    }

    /// All samples, and all nodes that are `used`.
    pub(super) fn of_used(report: &'r Report<'a>, used: &[bool]) -> Merged<'r, 'a> {
        let profile = report.symbolized.profile();
        let totals = totals(report, profile.samples().iter());
        let children = ChildLists::of(profile.tree(), |node| used[node.index()]);
        Merged { report, totals, children }
    }

    /// Walks them, children in the order of their labels. What has fewer samples than `least` is
    /// skipped.
    pub(super) fn walk(&self, least: u64, visitor: &mut impl Visitor) {
        let mut places = Vec::new();
        self.add_children(NodeId::ROOT, &mut places);
        places.sort_unstable_by_key(|p| (p.label, p.node));
        let mut path = vec![Step { label: 0, begin: 0, next: 0 }];
        while let Some(step) = path.last_mut() {
            let Some(first) = places.get(step.next) else {
                places.truncate(step.begin);
                let label = step.label;
                path.pop();
                if let Some(caller) = path.last() {
                    // The callees that were left were behind those of the caller.
                    debug_assert!(places.len() >= caller.next);
                    visitor.leave(label);
                }
                continue;
            };
            let label = first.label;
            let begin = step.next;
            let same = places[begin..].iter().take_while(|p| p.label == label).count();
            let end = begin + same;
            step.next = end;
            let total = places[begin..end]
                .iter()
                .fold(0_u64, |sum, p| sum.saturating_add(self.totals[p.node.index()]));
            if total < least {
                visitor.skipped(total);
                continue;
            }
            visitor.places(&places[begin..end]);
            let callees = places.len();
            let mut own = 0_u64;
            for at in begin..end {
                let place = places[at];
                if place.inner == 0 {
                    own = own.saturating_add(self.add_children(place.node, &mut places));
                } else {
                    let inner = place.inner - 1;
                    let label = self.labels(place.node)[inner as usize];
                    places.push(InlinedNode { label, inner, ..place });
                }
            }
            places[callees..].sort_unstable_by_key(|p| (p.label, p.node));
            visitor.enter(label, own, total);
            path.push(Step { label, begin: callees, next: callees });
        }
    }

    /// Adds what a node calls. Answers the samples that end there.
    fn add_children(&self, node: NodeId, places: &mut Vec<InlinedNode>) -> u64 {
        let mut own = self.totals[node.index()];
        for &node in self.children.of_node(node) {
            own = own.saturating_sub(self.totals[node.index()]);
            if let [inner @ .., label] = self.labels(node) {
                places.push(InlinedNode { label: *label, node, inner: inner.len() as u32 });
            }
        }
        own
    }

    /// The labels of a node's frame, innermost first; none of the root.
    #[inline]
    pub(super) fn labels(&self, node: NodeId) -> &'r [LabelId] {
        match self.report.symbolized.profile().tree().item(node) {
            Some(frame) => self.report.labels.of_frame(FrameId(frame)),
            None => &[],
        }
    }
}

fn totals<'s>(report: &Report<'_>, samples: impl Iterator<Item = &'s Sample>) -> Vec<u64> {
    let tree = report.symbolized.profile().tree();
    let mut totals = vec![0_u64; tree.node_count()];
    for sample in samples {
        let total = &mut totals[sample.node.index()];
        *total = total.saturating_add(sample.count);
    }
    // Children come after their parents: from the back, each is complete when it is added.
    for (node, parent, _) in tree.iter().rev() {
        totals[parent.index()] = totals[parent.index()].saturating_add(totals[node.index()]);
    }
    totals
}
