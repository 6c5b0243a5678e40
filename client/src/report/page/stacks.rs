//! The stacks of a page: merged by label, callers before callees.

use std::collections::HashMap;

use super::ways::Way;
use crate::profile::{ChildLists, FrameId, NodeId, StackTree, TooManyStacks};
use crate::report::Report;
use crate::report::labels::LabelId;
use crate::report::page::recordings::shown;

/// The shown stacks, in the order of a walk from the roots: a node's callees follow it, by their
/// names.
pub(in crate::report) struct Stacks {
    /// Depth, from 1, label, and how the caller of most samples was found.
    nodes: Vec<(u32, LabelId, Way)>,
    /// By the profile's node: the place in `nodes` plus one; 0 if it is not shown.
    of_stack: Vec<u32>,
}

impl Stacks {
    pub(in crate::report) fn of(report: &Report<'_>) -> Result<Stacks, TooManyStacks> {
        let tree = report.symbolized.profile().tree();
        let mut merged = StackTree::new();
        let mut of_stack = vec![NodeId::ROOT; tree.len()];
        let used = used(report);
        let totals = totals(report);
        let mut ways = Ways::default();
        for (node, parent, frame) in tree.iter().filter(|(node, ..)| used[node.index()]) {
            let labels = report.labels.of_frame(FrameId(frame)).iter().rev();
            let mut way = way(report, parent, frame);
            let mut at = of_stack[parent.index()];
            for label in labels {
                at = merged.child(at, *label)?;
                ways.add(at, way, totals[node.index()]);
                way = Way::Inlined;
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
            nodes.push((depth, merged.item(node).unwrap_or(0), ways.of(node)));
            places[node.index()] = nodes.len() as u32;
            by_label(node, depth + 1, &mut left);
        }
        let mut shown = vec![0; tree.len()];
        for (node, _, _) in tree.iter().filter(|(node, ..)| report.weights.keeps(*node)) {
            shown[node.index()] = places[of_stack[node.index()].index()];
        }
        Ok(Stacks { of_stack: shown, nodes })
    }

    /// Depths, labels, and how callers were found.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u32, LabelId, Way)> + '_ {
        self.nodes.iter().copied()
    }

    /// The place of a stack's innermost label, from 1; 0 if the report leaves the stack out.
    pub(in crate::report) fn node(&self, stack: NodeId) -> u32 {
        self.of_stack[stack.index()]
    }
}

/// How the caller of a frame was found, which is that of the stack `outer`.
fn way(report: &Report<'_>, outer: NodeId, frame: u32) -> Way {
    let profile = report.symbolized.profile();
    let outer = profile.tree().item(outer);
    let outer = outer.map(|frame| profile.frame(FrameId(frame)));
    let caller = report.callers.get(frame as usize).copied().flatten();
    Way::of(profile.frame(FrameId(frame)), outer, caller, profile.recording())
}

/// By the profile's node: the counts of the stacks that go through it.
fn totals(report: &Report<'_>) -> Vec<u64> {
    let profile = report.symbolized.profile();
    let mut totals = vec![0_u64; profile.tree().len()];
    for sample in profile.samples() {
        let total = &mut totals[sample.node.index()];
        *total = total.saturating_add(sample.count);
    }
    for (node, parent, _) in profile.tree().iter().rev() {
        totals[parent.index()] = totals[parent.index()].saturating_add(totals[node.index()]);
    }
    totals
}

/// By merged node: the way that most samples have. Frames of one label may have several.
#[derive(Default)]
struct Ways {
    first: Vec<Option<(Way, u64)>>,
    /// Nodes that have more than one, and all of theirs.
    several: HashMap<NodeId, [u64; Way::COUNT]>,
}

impl Ways {
    fn add(&mut self, node: NodeId, way: Way, count: u64) {
        if self.first.len() <= node.index() {
            self.first.resize(node.index() + 1, None);
        }
        let (first, sum) = self.first[node.index()].get_or_insert((way, 0));
        if let Some(all) = self.several.get_mut(&node) {
            all[way as usize] = all[way as usize].saturating_add(count);
        } else if *first == way {
            *sum = sum.saturating_add(count);
        } else {
            let mut all = [0; Way::COUNT];
            all[*first as usize] = *sum;
            all[way as usize] = count;
            self.several.insert(node, all);
        }
    }

    fn of(&self, node: NodeId) -> Way {
        let first = self.first.get(node.index()).copied().flatten();
        let first = first.map_or(Way::None, |(way, _)| way);
        let several = self.several.get(&node);
        let most =
            several.and_then(|all| Way::ALL.into_iter().max_by_key(|way| all[*way as usize]));
        most.unwrap_or(first)
    }
}

/// By the profile's node: whether a sample or a tick ends there or deeper.
fn used(report: &Report<'_>) -> Vec<bool> {
    let profile = report.symbolized.profile();
    let mut used = vec![false; profile.tree().len()];
    for sample in profile.samples() {
        used[sample.node.index()] = true;
    }
    for of in report.view.iter().flat_map(|view| shown(report, view)) {
        for stack in of.ticks().filter_map(|tick| tick.stack) {
            used[stack.index()] = true;
        }
    }
    for (node, parent, _) in profile.tree().iter().rev() {
        used[parent.index()] |= used[node.index()];
    }
    used
}
