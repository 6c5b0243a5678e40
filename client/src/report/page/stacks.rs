//! The stacks of a page: merged by label, callers before callees.

use crate::profile::{ChildLists, FrameId, NodeId, StackTree, TooManyStacks};
use crate::report::Report;
use crate::report::labels::LabelId;

/// The shown stacks, in the order of a walk from the roots: a node's callees follow it, by their names.
pub(in crate::report) struct Stacks {
    /// Depth, from 1, and label.
    nodes: Vec<(u32, LabelId)>,
    /// By the profile's node: the place in `nodes` plus one; 0 if it is not shown.
    of_stack: Vec<u32>,
}

impl Stacks {
    pub(in crate::report) fn of(report: &Report<'_>) -> Result<Stacks, TooManyStacks> {
        let tree = report.symbolized.profile().tree();
        let mut merged = StackTree::new();
        let mut of_stack = vec![NodeId::ROOT; tree.len()];
        let used = used(report);
        for (node, parent, frame) in tree.iter().filter(|(node, ..)| used[node.index()]) {
            let labels = report.labels.of_frame(FrameId(frame)).iter().rev();
            let mut at = of_stack[parent.index()];
            for label in labels {
                at = merged.child(at, *label)?;
            }
            of_stack[node.index()] = at;
        }
        let mut places = vec![0; merged.len()];
        let mut nodes = Vec::with_capacity(merged.len());
        let children = ChildLists::of(&merged);
        let by_label = |of: NodeId, depth: u32, left: &mut Vec<(NodeId, u32)>| {
            let from = left.len();
            left.extend(children.of_node(of).iter().map(|child| (*child, depth)));
            // The last is visited first.
            left[from..].sort_unstable_by_key(|(child, _)| std::cmp::Reverse(merged.item(*child)));
        };
        let mut left = Vec::new();
        by_label(NodeId::ROOT, 1, &mut left);
        while let Some((node, depth)) = left.pop() {
            nodes.push((depth, merged.item(node).unwrap_or(0)));
            places[node.index()] = nodes.len() as u32;
            by_label(node, depth + 1, &mut left);
        }
        let mut shown = vec![0; tree.len()];
        for (node, _, _) in tree.iter().filter(|(node, ..)| report.weights.keeps(*node)) {
            shown[node.index()] = places[of_stack[node.index()].index()];
        }
        Ok(Stacks {
            of_stack: shown,
            nodes,
        })
    }

    /// Depths and labels.
    pub(in crate::report) fn nodes(&self) -> impl Iterator<Item = (u32, LabelId)> + '_ {
        self.nodes.iter().copied()
    }

    /// The place of a stack's innermost label, from 1; 0 if the report leaves the stack out.
    pub(in crate::report) fn node(&self, stack: NodeId) -> u32 {
        self.of_stack[stack.index()]
    }
}

/// By the profile's node: whether a sample or a tick ends there or deeper.
fn used(report: &Report<'_>) -> Vec<bool> {
    let profile = report.symbolized.profile();
    let mut used = vec![false; profile.tree().len()];
    for sample in profile.samples() {
        used[sample.node.index()] = true;
    }
    if let Some(view) = &report.view {
        let info = profile.recording();
        let ticks = view
            .timeline
            .ticks(&view.of, info.mode, view.window, info.inside());
        for stack in ticks.filter_map(|tick| tick.stack) {
            used[stack.index()] = true;
        }
    }
    for (node, parent, _) in profile.tree().iter().rev() {
        used[parent.index()] |= used[node.index()];
    }
    used
}
