//! The stacks merged by name: frames of the same function under the same callers are one.
//!
//! The merged tree is never built. It is walked depth first, and subtrees too small to be shown are
//! skipped, so its size does not matter.

use crate::profile::{ChildLists, FrameId, NodeId};

use super::Report;
use super::filter::Weights;
use super::labels::LabelId;

/// What a walk meets.
pub(super) trait Visitor {
    /// A function with the samples that end in it and those that go through it.
    fn enter(&mut self, label: LabelId, own: u64, total: u64);
    /// A function that was not entered: it has fewer samples than asked for.
    fn skipped(&mut self, total: u64);
    /// Back to the caller of the function that was entered last.
    fn leave(&mut self, label: LabelId);
}

/// Walks the stacks of a report from their roots, children in the order of their labels.
///
/// What has fewer samples than `least` is skipped; stacks without samples always are.
pub(super) fn walk(report: &Report<'_>, least: u64, visitor: &mut impl Visitor) {
    walk_some(report, &report.weights, least, visitor);
}

/// As [`walk`], with other weights than the report's.
pub(super) fn walk_some(
    report: &Report<'_>,
    weights: &Weights,
    least: u64,
    visitor: &mut impl Visitor,
) {
    let walk = Walk {
        report,
        weights,
        children: ChildLists::of(report.symbolized.profile().tree()),
        least: least.max(1),
    };
    walk.run(visitor);
}

struct Walk<'r, 'a> {
    report: &'r Report<'a>,
    weights: &'r Weights,
    children: ChildLists,
    least: u64,
}

/// A profile's node, at one of the functions of its frame.
#[derive(Clone, Copy)]
struct InlinedNode {
    label: LabelId,
    node: NodeId,
    /// How many functions were inlined here and come below this one.
    inner: u32,
}

/// One function on the way from the root to where the walk is.
struct Step {
    label: LabelId,
    /// Where its callees begin in the list of places, and the next one to visit.
    begin: usize,
    next: usize,
}

impl Walk<'_, '_> {
    fn run(&self, visitor: &mut impl Visitor) {
        let weights = self.weights;
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
                .fold(0_u64, |sum, p| sum.saturating_add(weights.total(p.node)));
            if total < self.least {
                if total != 0 {
                    visitor.skipped(total);
                }
                continue;
            }
            let callees = places.len();
            let mut own = 0_u64;
            for at in begin..end {
                let place = places[at];
                if place.inner == 0 {
                    own = own.saturating_add(self.own(place.node));
                    self.add_children(place.node, &mut places);
                } else {
                    places.push(self.place(place.node, place.inner - 1));
                }
            }
            places[callees..].sort_unstable_by_key(|p| (p.label, p.node));
            visitor.enter(label, own, total);
            path.push(Step { label, begin: callees, next: callees });
        }
    }

    /// The samples that end at a node.
    fn own(&self, node: NodeId) -> u64 {
        let weights = self.weights;
        self.children
            .of_node(node)
            .iter()
            .fold(weights.total(node), |own, child| own.saturating_sub(weights.total(*child)))
    }

    fn add_children(&self, node: NodeId, places: &mut Vec<InlinedNode>) {
        for child in self.children.of_node(node) {
            if self.weights.total(*child) != 0 {
                let outermost = self.labels(*child).len() as u32 - 1;
                places.push(self.place(*child, outermost));
            }
        }
    }

    fn place(&self, node: NodeId, inner: u32) -> InlinedNode {
        InlinedNode { label: self.labels(node)[inner as usize], node, inner }
    }

    fn labels(&self, node: NodeId) -> &[LabelId] {
        match self.report.symbolized.profile().tree().item(node) {
            Some(frame) => self.report.labels.of_frame(FrameId(frame)),
            None => &[],
        }
    }
}
