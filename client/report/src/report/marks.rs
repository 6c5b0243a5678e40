//! How much of a profile carries which mark, and under what.

use std::cmp::Reverse;
use std::collections::HashMap;

use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Frame, FrameId, NodeId, Profile, SpecialFrame};
use unikprof_profile::symbols::{FunctionKind, Symbolized};

/// What the stacks that carry a mark hold, in the mode's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Marked {
    /// The root side is cut off: the stack was deeper than the limit.
    pub(crate) truncated: u64,
    /// The root side is missing: the chain of frames ended badly.
    pub(crate) broken: u64,
    /// The leaf is [`SpecialFrame::Late`].
    pub(crate) late: u64,
    /// The leaf is [`SpecialFrame::Blocked`].
    pub(crate) blocked: u64,
}

/// Whether stacks with this frame at their root lack callers.
pub(super) fn is_cut(root: Frame) -> bool {
    matches!(root, Frame::Special(SpecialFrame::Broken | SpecialFrame::Truncated))
}

impl Marked {
    pub(crate) fn of(profile: &Profile) -> Marked {
        let tree = profile.tree();
        let mark = |node: NodeId| match profile.frame(FrameId(tree.item(node)?)) {
            Frame::Special(mark) => Some(mark),
            Frame::Address { .. } => None,
        };
        // By node: the mark at the root of its stack.
        let mut roots: Vec<Option<SpecialFrame>> = vec![None; tree.node_count()];
        for (node, parent, _) in tree.iter() {
            roots[node.index()] = match parent {
                NodeId::ROOT => mark(node),
                parent => roots[parent.index()],
            };
        }
        let mut marked = Marked::default();
        for sample in profile.samples() {
            let root = match roots[sample.node.index()] {
                Some(SpecialFrame::Truncated) => Some(&mut marked.truncated),
                Some(SpecialFrame::Broken) => Some(&mut marked.broken),
                _ => None,
            };
            if let Some(sum) = root {
                *sum = sum.saturating_add(sample.count);
            }
            let leaf = match mark(sample.node) {
                Some(SpecialFrame::Late) => Some(&mut marked.late),
                Some(SpecialFrame::Blocked) => Some(&mut marked.blocked),
                _ => None,
            };
            if let Some(sum) = leaf {
                *sum = sum.saturating_add(sample.count);
            }
        }
        marked
    }
}

/// The functions that stand next to a [`SpecialFrame::Late`] leaf, with what those stacks hold,
/// most first: these ran when the samples arrived.
pub(crate) fn late_under(symbolized: &Symbolized<'_>) -> Vec<(String, u64)> {
    let profile = symbolized.profile();
    let tree = profile.tree();
    let mut functions: HashMap<&str, u64> = HashMap::new();
    for sample in profile.samples() {
        let leaf = tree.item(sample.node).map(FrameId);
        if leaf.is_none_or(|leaf| profile.frame(leaf) != Frame::Special(SpecialFrame::Late)) {
            continue;
        }
        let below = tree.parent(sample.node).and_then(|node| tree.item(node));
        let symbols = below.map_or(&[][..], |frame| symbolized.frame(FrameId(frame)));
        let named = symbols
            .iter()
            .map(|symbol| symbolized.function(symbol.function))
            .find(|function| !matches!(function.kind, FunctionKind::Special(_)));
        if let Some(function) = named {
            let sum = functions.entry(&function.name).or_default();
            *sum = sum.saturating_add(sample.count);
        }
    }
    let mut functions: Vec<(String, u64)> =
        functions.into_iter().map(|(name, count)| (Printable(name).to_string(), count)).collect();
    functions.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    functions
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use unikprof_profile::profile::ProfileBuilder;
    use unikprof_profile::symbols::{Images, Symbolizer};

    fn mark(mark: SpecialFrame) -> Frame {
        Frame::Special(mark)
    }

    #[test]
    fn marks_count_where_they_belong_and_nowhere_else() {
        let (late, broken) = (mark(SpecialFrame::Late), mark(SpecialFrame::Broken));
        let blocked = mark(SpecialFrame::Blocked);
        let mut builder = ProfileBuilder::new();
        for (count, stack) in [
            (1, &[Frame::leaf(1), broken][..]),
            (2, &[late, Frame::leaf(1), broken]),
            (4, &[blocked, Frame::leaf(2)]),
            (8, &[Frame::leaf(2), mark(SpecialFrame::Truncated)]),
            // A hostile recording puts marks anywhere.
            (16, &[Frame::leaf(3), late, broken, Frame::caller(4)]),
            (32, &[late]),
        ] {
            builder.add_stack(0, count, stack).unwrap();
        }
        let profile = builder.finish();
        assert_eq!(Marked::of(&profile), Marked { truncated: 8, broken: 3, late: 34, blocked: 4 });
        let symbolized = Symbolizer::new(Images::default()).resolve(&profile).unwrap();
        let under = late_under(&symbolized);
        assert_eq!(under.len(), 1, "{under:?}");
        assert_eq!(under[0].1, 2);
    }
}
