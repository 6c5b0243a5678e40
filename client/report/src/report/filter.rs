//! Selects the stacks that are shown.

use unikprof_profile::profile::{FrameId, Mode, NodeId, Profile};
use unikprof_profile::symbols::{Function, FunctionKind, Symbol, Symbolized};

use super::heap::without_allocator;
use super::{FunctionName, ReportOptions};

/// What the filters keep.
#[derive(Debug)]
pub(super) struct Weights {
    /// By node: whether a stack that ends here is shown; `None` where all are.
    kept: Option<Vec<bool>>,
    /// The samples that are shown.
    pub(super) shown: u64,
    /// All samples, also those the filters drop.
    pub(super) recorded: u64,
}

impl Weights {
    pub(super) fn of(symbolized: &Symbolized<'_>, options: &ReportOptions) -> Weights {
        let profile = symbolized.profile();
        let recorded = profile.sample_count();
        let mut weights = Weights { kept: kept_nodes(symbolized, options), shown: 0, recorded };
        let shown = profile.samples().iter().filter(|sample| weights.keeps(sample.node));
        weights.shown = shown.fold(0, |sum, sample| sum.saturating_add(sample.count));
        weights
    }

    /// Whether a stack is shown.
    pub(super) fn keeps(&self, stack: NodeId) -> bool {
        let kept = self.kept.as_ref();
        kept.is_none_or(|kept| kept[stack.index()])
    }
}

/// The profile without the frames of those that took its samples: the allocator's of allocations,
/// the agent's of waits. `None` if it has no such frames.
pub fn without_sampler(symbolized: &Symbolized<'_>) -> Option<Profile> {
    let profile = symbolized.profile();
    if profile.heap.is_some() {
        return without_allocator(symbolized);
    }
    if profile.recording().mode != Mode::OffCpu {
        return None;
    }
    let is_agents = |frame: u32| {
        let mut symbols = symbolized.frame(FrameId(frame)).iter();
        symbols.all(|symbol| symbolized.function(symbol.function).kind == FunctionKind::Agent)
    };
    let tree = profile.tree();
    let outside = |node: NodeId| {
        let mut at = node;
        while tree.item(at).is_some_and(is_agents) {
            at = tree.parent(at).unwrap_or(NodeId::ROOT);
        }
        if at == NodeId::ROOT { node } else { at }
    };
    let mut moved = profile.clone();
    for sample in &mut moved.samples {
        sample.node = outside(sample.node);
    }
    Some(moved)
}

/// The symbols of a frame that are shown, innermost first.
pub(super) fn shown_symbols<'s>(symbols: &'s [Symbol], options: &ReportOptions) -> &'s [Symbol] {
    if options.no_inlines { &symbols[symbols.len().saturating_sub(1)..] } else { symbols }
}

fn kept_nodes(symbolized: &Symbolized<'_>, options: &ReportOptions) -> Option<Vec<bool>> {
    if options.focus.is_none() && options.ignore.is_none() {
        return None;
    }
    const FOCUSED: u8 = 1;
    const IGNORED: u8 = 2;
    let marks_of = |function: &Function| {
        let matches =
            |name: &Option<FunctionName>| name.as_ref().is_some_and(|name| name.matches(function));
        u8::from(matches(&options.focus)) * FOCUSED + u8::from(matches(&options.ignore)) * IGNORED
    };
    let by_function: Vec<u8> = symbolized.functions().iter().map(marks_of).collect();
    let profile = symbolized.profile();
    let by_frame: Vec<u8> = profile
        .frame_ids()
        .map(|frame| {
            shown_symbols(symbolized.frame(frame), options)
                .iter()
                .fold(0, |marks, symbol| marks | by_function[symbol.function.index()])
        })
        .collect();
    let tree = profile.tree();
    let mut by_node = vec![0_u8; tree.node_count()];
    for (node, parent, frame) in tree.iter() {
        by_node[node.index()] = by_node[parent.index()] | by_frame[frame as usize];
    }
    let wanted = if options.focus.is_some() { FOCUSED } else { 0 };
    Some(by_node.iter().map(|marks| marks & (FOCUSED | IGNORED) == wanted).collect())
}
