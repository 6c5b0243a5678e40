//! Memory copies and allocation that dominate, by the names of the functions that do them.

use std::collections::HashMap;

use super::super::uncertainty::{Recorded, Unplaced};
use super::text::with_interval;
use super::{FEW, Finding, Found, Subject, score};
use unikprof_profile::profile::NodeId;
use unikprof_profile::symbols::{MemoryWork as Kind, memory_work as kind_of};
use unikprof_profile::units::percent;

pub(super) const RULE: &str = "memory";

/// Without a quarter of the time a guest does a third more, without half twice as much.
const NOTABLE: f64 = 0.25;
const SEVERE: f64 = 0.5;
const CALLERS: usize = 3;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let recorded = subject.table().recorded;
    if recorded == 0 {
        return Err(FEW);
    }
    let labels = subject.report.labels.all();
    let symbolized = subject.report.symbolized;
    let kinds: Vec<Option<Kind>> =
        labels.iter().map(|label| kind_of(symbolized.function(label.function))).collect();
    subject.has_names()?;
    if kinds.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let all = [Kind::Copy, Kind::Allocation];
    Ok(all.into_iter().filter_map(|kind| find(subject, &kinds, kind)).collect())
}

/// Where a stack spends memory's time: what does it, and the guest's code that asked for it.
struct Place {
    function: u32,
    caller: Option<u32>,
}

/// The function of this kind at the inner end of a stack, and the function that calls it. A copy
/// within an allocation is the allocation's.
fn place(
    subject: &Subject<'_>,
    kinds: &[Option<Kind>],
    kind: Kind,
    stack: NodeId,
) -> Option<Place> {
    let frames = subject.profile.stack(stack);
    let labels = frames.flat_map(|frame| subject.report.labels.of_frame(frame).iter().copied());
    let symbolized = subject.report.symbolized;
    let name_of = |label: u32| {
        let function = subject.report.labels.all()[label as usize].function;
        symbolized.function(function)
    };
    let mut found: Option<u32> = None;
    for label in labels {
        match kinds[label as usize] {
            Some(Kind::Allocation) if kind == Kind::Copy => return None,
            // Of copies the one that does it, of allocation the one that was called.
            Some(known) if known == kind => match kind {
                Kind::Copy => found = found.or(Some(label)),
                Kind::Allocation => found = Some(label),
            },
            Some(_) => {}
            // Libraries' own containers ask for what the guest's code wants.
            None if found.is_some() && is_library(&name_of(label).name) => {}
            None => {
                return found.map(|function| Place { function, caller: Some(label) });
            }
        }
        // What is deeper within other code is that code's work.
        if found.is_none() && kind == Kind::Copy {
            return None;
        }
    }
    found.map(|function| Place { function, caller: None })
}

pub(super) fn is_library(name: &str) -> bool {
    // `<u64>::rotate_left`
    let of = name.strip_prefix('<').and_then(|rest| rest.split_once(">::"));
    if of.is_some_and(|(of, _)| {
        of.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && of.starts_with(|first: char| first.is_ascii_lowercase())
    }) {
        return true;
    }
    let name = name.trim_start_matches(['<', '&']);
    ["alloc::", "core::", "std::", "hashbrown::", "["].iter().any(|of| name.starts_with(of))
}

fn find(subject: &Subject<'_>, kinds: &[Option<Kind>], kind: Kind) -> Option<Finding> {
    let (mut part, mut callers, mut functions) = (0_u64, HashMap::new(), HashMap::new());
    for sample in subject.report.shown_samples() {
        if let Some(place) = place(subject, kinds, kind, sample.node) {
            part = part.saturating_add(sample.count);
            let function: &mut u64 = functions.entry(place.function).or_default();
            *function = function.saturating_add(sample.count);
            let caller: &mut u64 = callers.entry(place.caller).or_default();
            *caller = caller.saturating_add(sample.count);
        }
    }
    let table = subject.table();
    let all = Recorded {
        count: table.recorded,
        unit: table.unit,
        unplaced: Unplaced::of(subject.profile),
    };
    let share = all.share(part, 0);
    if share.low < NOTABLE {
        return None;
    }
    let (what, next) = match kind {
        Kind::Copy => (
            "copying and clearing memory",
            "pass references or move instead of copying, and do not clear what is overwritten",
        ),
        Kind::Allocation => (
            "allocating and freeing memory",
            "reuse buffers, allocate outside of loops, and reserve what will be needed",
        ),
    };
    let first = |counts: HashMap<u32, u64>| {
        let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
        counts.sort_by_key(|(label, count)| (std::cmp::Reverse(*count), *label));
        counts
    };
    let functions = first(functions);
    let callers =
        first(callers.into_iter().filter_map(|(caller, count)| Some((caller?, count))).collect());
    let words = |counts: &[(u32, u64)]| {
        let words = counts.iter().take(CALLERS).map(|(label, count)| {
            format!("`{}` {}", subject.text(*label), percent(*count as f64 / part as f64))
        });
        words.collect::<Vec<String>>().join(", ")
    };
    let mut finding = Finding::new(
        RULE,
        score(share.share, NOTABLE, SEVERE),
        format!("{what} takes {}", with_interval(&share, table.unit)),
        next,
    )
    .because(format!("by {}", words(&functions)))
    .real("share", share.share);
    if callers.is_empty() {
        finding = finding.because("who calls it is not known");
    } else {
        finding = finding.because(format!("for {}", words(&callers)));
    }
    let most = callers.first().or(functions.first());
    finding.functions.extend(most.map(|(label, _)| subject.text(*label).to_owned()));
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unikprof_profile::symbols::{Function, FunctionKind};

    fn kind(name: &str) -> Option<Kind> {
        kind_of(&Function::new(name.to_owned(), None, FunctionKind::Named))
    }

    #[test]
    fn functions_of_several_languages_are_known() {
        for name in [
            "memcpy",
            "__memmove_avx_unaligned_erms",
            "__memset_avx2_unaligned",
            "core::ptr::copy_nonoverlapping::<u8>",
            "compiler_builtins::mem::memcpy",
            "caml_blit_bytes",
        ] {
            assert_eq!(kind(name), Some(Kind::Copy), "{name}");
        }
        for name in [
            "malloc",
            "__libc_malloc",
            "__GI___libc_free",
            "_int_malloc",
            "cfree",
            "je_malloc",
            "operator new(unsigned long)",
            "operator delete[](void*)",
            "__rust_alloc",
            "__rustc::__rust_alloc",
            "__rustc::__rdl_realloc",
            "__rdl_dealloc",
            "uk_malloc",
            "_xmalloc",
            "memp_malloc",
            "unikprof_on_alloc",
            "alloc::alloc::realloc",
            "<talc::Talck<R, O> as core::alloc::global::GlobalAlloc>::alloc",
            "caml_empty_minor_heap",
            "caml_alloc_small_dispatch",
        ] {
            assert_eq!(kind(name), Some(Kind::Allocation), "{name}");
        }
        for name in [
            "memchr",
            "freeze",
            "shop::alloc_room",
            "mallory",
            "memp_init",
            "xmallory",
            "Server::free_slots",
            "memcmp",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
    }
}
