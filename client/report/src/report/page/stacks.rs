//! The stacks of a page: merged by label, callers before callees.

use super::ways::Way;
use crate::report::Report;
use crate::report::labels::LabelId;
use crate::report::merged::{InlinedNode, Merged, Visitor};
use crate::report::page::recordings::shown;
use unikprof_profile::profile::{FrameId, NodeId};

/// The places of the shown stacks in a walk from the roots: a function's callees follow it, by
/// their names.
pub(in crate::report) struct Stacks {
    /// By the profile's node: the place, from 1; 0 if it is not shown.
    of_stack: Vec<u32>,
}

impl Stacks {
    /// Of each place in turn, `add` is given the depth, from 1, the label, and how the caller of
    /// most samples was found.
    pub(in crate::report) fn of(report: &Report<'_>, add: impl FnMut(u32, LabelId, Way)) -> Stacks {
        let merged = Merged::of_used(report, &used(report));
        let of_stack = vec![0; merged.totals.len()];
        let mut places = Places { report, merged: &merged, of_stack, count: 0, depth: 1, add };
        merged.walk(0, &mut places);
        Stacks { of_stack: places.of_stack }
    }

    /// The place of a stack's innermost label, from 1; 0 if the report leaves the stack out.
    pub(in crate::report) fn node(&self, stack: NodeId) -> u32 {
        self.of_stack[stack.index()]
    }
}

struct Places<'r, 'a, F> {
    report: &'r Report<'a>,
    merged: &'r Merged<'r, 'a>,
    of_stack: Vec<u32>,
    count: u32,
    depth: u32,
    add: F,
}

impl<F: FnMut(u32, LabelId, Way)> Visitor for Places<'_, '_, F> {
    fn places(&mut self, places: &[InlinedNode]) {
        self.count += 1;
        for place in places.iter().filter(|place| place.inner == 0) {
            if self.report.weights.keeps(place.node) {
                self.of_stack[place.node.index()] = self.count;
            }
        }
        let way = self.way(places);
        (self.add)(self.depth, places[0].label, way);
    }

    fn enter(&mut self, _label: LabelId, _own: u64, _total: u64) {
        self.depth += 1;
    }

    fn leave(&mut self, _label: LabelId) {
        self.depth -= 1;
    }
}

impl<F> Places<'_, '_, F> {
    /// The way that most samples have: frames of one label may have several.
    fn way(&self, places: &[InlinedNode]) -> Way {
        let first = self.way_of(places[0]);
        if places[1..].iter().all(|place| self.way_of(*place) == first) {
            return first;
        }
        let mut sums = [0_u64; Way::COUNT];
        for place in places {
            let sum = &mut sums[self.way_of(*place) as usize];
            *sum = sum.saturating_add(self.merged.totals[place.node.index()]);
        }
        Way::ALL.into_iter().max_by_key(|way| sums[*way as usize]).unwrap_or(first)
    }

    fn way_of(&self, place: InlinedNode) -> Way {
        if place.inner as usize + 1 < self.merged.labels(place.node).len() {
            return Way::Inlined;
        }
        let profile = self.report.symbolized.profile();
        let tree = profile.tree();
        let frame_of = |node| tree.item(node).map(FrameId);
        let Some(frame) = frame_of(place.node) else { return Way::None };
        let outer = tree.parent(place.node).and_then(frame_of);
        let outer = outer.map(|frame| profile.frame(frame));
        let caller = self.report.callers.get(frame.index()).copied().flatten();
        Way::of(profile.frame(frame), outer, caller, profile.recording())
    }
}

/// By the profile's node: whether a sample or a tick ends there or deeper.
fn used(report: &Report<'_>) -> Vec<bool> {
    let profile = report.symbolized.profile();
    let mut used = vec![false; profile.tree().node_count()];
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
