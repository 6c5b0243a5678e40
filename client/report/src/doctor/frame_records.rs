//! Callers that a walk along frame pointers passed over.
//!
//! A function that keeps no frame record leaves the frame pointer at the record of some function
//! further out. A walk that meets it goes on with that function's caller: what lies between is
//! missing, and nothing is marked as broken. The images' call frame information tells such
//! functions: at their calls the return address is found from the stack pointer.

use std::cmp::Reverse;
use std::collections::HashMap;

use unikprof_proto::caller_table::{Base, Caller, Rule};

use super::check::part_of;
use unikprof_profile::caller_table::rules_of_frames;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{
    AddressKind, Architecture, Frame, FrameId, NodeId, Profile, SpecialFrame, Unwind,
};
use unikprof_profile::symbols::{FunctionId, FunctionKind, Symbolized, Symbolizer};

/// The stacks that lack callers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PassedOver {
    /// Their share of what the recording counts, from 0 to 1.
    pub(super) share: f64,
    /// The functions whose callers are missing, most samples first; those without names are left
    /// out.
    pub(super) functions: Vec<String>,
}

impl PassedOver {
    /// Looks every caller up in the images that the symbolizer has or finds. `None` where that says
    /// nothing: a walk by the caller table, no image with call frame information.
    pub(super) fn of(symbolized: &Symbolized<'_>, symbolizer: &Symbolizer) -> Option<PassedOver> {
        let recording = symbolized.profile().recording();
        let along_frame_pointers = recording.unwind == Unwind::FramePointers;
        if !along_frame_pointers {
            return None;
        }
        Some(count(symbolized, &without_record(symbolized, symbolizer)?))
    }
}

/// By frame: whether it is a call in a function that keeps no frame record there.
fn without_record(symbolized: &Symbolized<'_>, symbolizer: &Symbolizer) -> Option<Vec<bool>> {
    let profile = symbolized.profile();
    let architecture = &profile.recording().architecture;
    let rules = rules_of_frames(symbolized, symbolizer, |frame| is_caller(profile, frame));
    let is_known = rules.iter().any(Option::is_some);
    let keeps_none = |rule: &Option<Rule>| rule.is_some_and(|it| keeps_no_record(architecture, it));
    is_known.then(|| rules.iter().map(keeps_none).collect())
}

/// Whether a function keeps no frame record at a call with this rule.
fn keeps_no_record(architecture: &Architecture, rule: Rule) -> bool {
    let Caller::Cfa { base, saved_fp, .. } = rule.caller() else {
        return false;
    };
    match architecture {
        // A function with a frame record finds its frame by the frame pointer.
        Architecture::X86_64 => base == Base::StackPointer,
        // GCC describes frames with a record by the stack pointer, too. A record is a pair of
        // words.
        Architecture::Aarch64 => saved_fp != Some(rule.return_address().saturating_add(1)),
        Architecture::Other(_) => false,
    }
}

/// Each stack counts once, for the innermost function in it that keeps no record.
fn count(symbolized: &Symbolized<'_>, without: &[bool]) -> PassedOver {
    let profile = symbolized.profile();
    let tree = profile.tree();
    // The outermost frames that a frame record led to. A thread begins there, often in a library
    // without frame pointers, and the walk has come to its end: nothing is passed over.
    let mut is_beginning = vec![false; tree.node_count()];
    for (_, parent, frame) in tree.iter() {
        if tree.parent(parent) == Some(NodeId::ROOT) && is_caller(profile, FrameId(frame)) {
            is_beginning[parent.index()] = true;
        }
    }
    let mut innermost: Vec<Option<FunctionId>> = vec![None; tree.node_count()];
    for (node, parent, frame) in tree.iter() {
        let frame = FrameId(frame);
        innermost[node.index()] = if without[frame.index()] && !is_beginning[node.index()] {
            // Of inlined functions the outermost is what has a frame.
            symbolized.frame(frame).last().map(|s| s.function)
        } else {
            innermost[parent.index()]
        };
    }
    let mut samples: HashMap<FunctionId, u64> = HashMap::new();
    let broken = Frame::Special(SpecialFrame::Broken);
    let is_marked = |node| profile.stack(node).last().is_some_and(|at| profile.frame(at) == broken);
    for sample in profile.samples().iter().filter(|sample| !is_marked(sample.node)) {
        if let Some(function) = innermost[sample.node.index()] {
            let sum = samples.entry(function).or_default();
            *sum = sum.saturating_add(sample.count);
        }
    }
    let all = samples.values().fold(0, |a: u64, b| a.saturating_add(*b));
    let mut named: Vec<(u64, &str)> = samples
        .into_iter()
        .map(|(id, samples)| (samples, symbolized.function(id)))
        .filter(|(_, f)| matches!(f.kind, FunctionKind::Named | FunctionKind::Agent))
        .map(|(samples, f)| (samples, f.name.as_str()))
        .collect();
    named.sort_by_key(|(samples, name)| (Reverse(*samples), *name));
    PassedOver {
        share: part_of(all, profile.sample_count()),
        functions: named.into_iter().map(|(_, name)| Printable(name).to_string()).collect(),
    }
}

fn is_caller(profile: &Profile, frame: FrameId) -> bool {
    matches!(profile.frame(frame), Frame::Address { kind: AddressKind::Caller, .. })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::golden_tests::{FIB, MAIN, PARSE, POLL, symbolized};
    use unikprof_profile::profile::{Mapping, ProfileBuilder, SpecialFrame};

    /// What is counted of these stacks where calls in `poll` and `main` keep no record.
    fn counted(stacks: &[(u64, &[Frame])]) -> (f64, Vec<String>) {
        let mut builder = ProfileBuilder::new();
        builder.add_mapping(Mapping { start: 0x10_0000, end: 0x20_0000, ..Mapping::default() });
        for (count, stack) in stacks {
            builder.add_stack(0, *count, stack).unwrap();
        }
        let profile = builder.finish();
        let without: Vec<bool> = profile
            .frames()
            .iter()
            .map(|frame| [Frame::caller(POLL), Frame::caller(MAIN)].contains(frame))
            .collect();
        let found = count(&symbolized(&profile), &without);
        (found.share, found.functions)
    }

    #[test]
    fn a_stack_counts_once_and_for_its_innermost_function() {
        let (poll, main, parse) = (Frame::caller(POLL), Frame::caller(MAIN), Frame::caller(PARSE));
        let (share, functions) = counted(&[
            (30, &[Frame::leaf(FIB), poll, poll, main, parse]),
            (10, &[Frame::leaf(FIB), main, parse]),
            // A leaf's caller is found by other means.
            (60, &[Frame::leaf(POLL), parse]),
        ]);
        assert_eq!(share, 0.4);
        assert_eq!(functions.len(), 2, "{functions:?}");
        assert!(functions[0].contains("poll"), "{functions:?}");
    }

    #[test]
    fn a_pair_of_saved_registers_is_a_frame_record_on_aarch64() {
        let rule = |base, saved_fp| Rule::new(Caller::Cfa { base, words: 6, saved_fp });
        let none = |rule| keeps_no_record(&Architecture::Aarch64, rule);
        let (sp, fp) = (Base::StackPointer, Base::FramePointer);
        assert!(!none(rule(sp, Some(6)).with_return_address(5)));
        assert!(!none(rule(fp, Some(2)).with_return_address(1)));
        assert!(none(rule(sp, None).with_return_address(2)));
        assert!(none(rule(sp, Some(6)).with_return_address(2)));
        assert!(!none(Rule::UNKNOWN) && !none(Rule::OUTERMOST));
        assert!(keeps_no_record(&Architecture::X86_64, rule(sp, Some(6))));
        assert!(!keeps_no_record(&Architecture::X86_64, Rule::FRAME_RECORD));
        let other = Architecture::Other("riscv64".into());
        assert!(!keeps_no_record(&other, rule(sp, None)));
    }

    /// Every stack of a guest with a C library ends in the library's own beginning of a thread.
    #[test]
    fn where_a_thread_begins_nothing_is_passed_over() {
        let begins: &[(u64, &[Frame])] = &[
            (90, &[Frame::leaf(FIB), Frame::caller(PARSE), Frame::caller(MAIN)]),
            (10, &[Frame::leaf(PARSE), Frame::caller(MAIN)]),
        ];
        assert_eq!(counted(begins), (0.0, vec![]));
        let cut = Frame::Special(SpecialFrame::Truncated);
        let late = Frame::Special(SpecialFrame::Late);
        let (share, _) = counted(&[
            // No record ever led here: the walk has lost its way behind the first caller.
            (10, &[Frame::leaf(FIB), Frame::caller(POLL)]),
            (10, &[late, Frame::leaf(FIB), Frame::caller(POLL)]),
            (10, &[Frame::leaf(FIB), Frame::caller(MAIN), cut]),
            (60, &[Frame::leaf(FIB), Frame::caller(PARSE)]),
            // That one is marked, and counted as broken.
            (10, &[Frame::leaf(FIB), Frame::caller(POLL), Frame::Special(SpecialFrame::Broken)]),
        ]);
        assert_eq!(share, 0.3);
    }
}
