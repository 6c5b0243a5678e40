//! One function that has most of the time, by itself, with what is inlined into it, or with what it
//! calls.
//!
//! Some function always has most samples: a main loop, or what it calls to serve requests. These
//! are the way to the work and not the work. So a function dominates with its callees only if it
//! has not all of the time, and if it is the innermost of its crate or namespace in half of the
//! stacks, which leave it for a library, or if its caller calls three others that matter.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::super::FunctionRow;
use super::super::labels::LabelId;
use super::super::uncertainty::{Recorded, Unplaced};
use super::memory::is_library;
use super::text::with_interval;
use super::{FEW, Finding, Found, Subject, score};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Interval;
use unikprof_profile::symbols::{FunctionId, FunctionKind, memory_work};

pub(super) const RULE: &str = "dominating function";

const HALF: f64 = 0.5;
const SEVERE: f64 = 0.8;
/// What has more than this of all samples with whole stacks is the way to the work.
const WAY: f64 = 0.95;
/// Callees with so much of their caller's samples matter; so many of them make it a choice between
/// several.
const WORTH: f64 = 0.1;
const MANY_CALLEES: usize = 4;
/// Callees with so much of the function's samples are named with it.
const CHAIN: f64 = 0.8;
const NAMED: usize = 5;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let table = subject.table();
    if table.recorded == 0 {
        return Err(FEW);
    }
    // Without names each address is a function.
    subject.has_names()?;
    let is_own = |function| is_own(subject, function);
    let first = table.rows.first().filter(|row| row.own_share.low >= HALF);
    if let Some(row) = first.filter(|row| is_own(row.function)) {
        let share = row.own_share;
        let finding = Finding::new(
            RULE,
            score(share.share, HALF, SEVERE),
            format!("`{}` itself takes {}", row.text, with_interval(&share, table.unit)),
            format!(
                "see its lines and instructions: `report --annotate {name}`; who calls it: \
                 `report --callers {name}`",
                name = in_shell(subject, row.function)
            ),
        );
        return Ok(vec![named(finding, &row.text, share.share)]);
    }
    if let Some((label, share)) = as_written(subject, is_own).filter(|(_, it)| it.low >= HALF) {
        let text = subject.text(label);
        let finding = Finding::new(
            RULE,
            score(share.share, HALF, SEVERE),
            format!("`{text}` itself takes {}", with_interval(&share, table.unit)),
            format!(
                "see its lines, also of what is inlined into it: `report --annotate {}`",
                in_shell(subject, subject.report.labels.all()[label as usize].function)
            ),
        )
        .because("what is inlined into it is counted as its own");
        return Ok(vec![named(finding, text, share.share)]);
    }
    let found = with_callees(subject).filter(|(row, _)| row.total_share.low >= HALF);
    let Some((row, chain)) = found else {
        return Ok(Vec::new());
    };
    let (text, share) = (&*row.text, row.total_share);
    let mut finding = Finding::new(
        RULE,
        score(share.share, HALF, SEVERE),
        format!("`{text}` and what it calls take {}", with_interval(&share, table.unit)),
        format!(
            "see what it calls, and how often: `report --callees {}`, or its sandwich in the page; \
             ask whether all of these calls are needed",
            in_shell(subject, row.function)
        ),
    );
    if !chain.is_empty() {
        let names: Vec<String> =
            chain.iter().take(NAMED).map(|label| format!("`{}`", subject.text(*label))).collect();
        finding = finding.because(format!("most of it is in {}", names.join(", and there in ")));
    }
    Ok(vec![named(finding, text, share.share)])
}

/// A function's name as an argument in a shell.
fn in_shell(subject: &Subject<'_>, function: FunctionId) -> String {
    let name = Printable(&subject.report.symbolized.function(function).name).to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
    match name.chars().all(is_plain) {
        true => name,
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

/// The function that dominates half of the samples with what it calls, and the chain of callees
/// that have most of it.
fn with_callees<'r>(subject: &Subject<'r>) -> Option<(&'r FunctionRow, Vec<LabelId>)> {
    let table = subject.table();
    let all = subject.report.labels.all();
    let least = table.recorded as f64 * HALF;
    let total = totals(subject, least);
    let most = table.whole as f64 * WAY;
    let mut candidates: Vec<LabelId> = total.keys().copied().collect();
    candidates.retain(|label| {
        let row = table.rows.iter().find(|row| row.label == *label);
        row.is_some_and(|row| (row.in_whole as f64) < most && is_own(subject, row.function))
    });
    if candidates.is_empty() {
        return None;
    }
    candidates.sort_unstable_by_key(|label| (Reverse(total[label]), *label));
    let (label, chain) = Calls::of(subject, total).dominating(candidates, least)?;
    // Whatever calls it: its row has all of its samples.
    let (text, function) = (subject.text(label), all[label as usize].function);
    let row = table.rows.iter().find(|row| row.function == function && row.text == text)?;
    Some((row, chain))
}

/// Where to look if nothing stands out: what seems to dominate, or else the innermost function that
/// has half of the samples with what it calls, and not nearly all.
pub(super) fn most<'r>(subject: &Subject<'r>) -> Option<&'r FunctionRow> {
    if let Some((row, _)) = with_callees(subject) {
        return Some(row);
    }
    let table = subject.table();
    let (least, most) = (table.recorded as f64 * HALF, table.whole as f64 * WAY);
    let rows = table.rows.iter().filter(|row| row.total as f64 >= least);
    let rows = rows.filter(|row| (row.in_whole as f64) < most && is_own(subject, row.function));
    rows.max_by(|a, b| a.depth.total_cmp(&b.depth))
}

/// Whether it is code of the guest's own: no library's, and no work on memory, which another rule
/// tells of.
fn is_own(subject: &Subject<'_>, function: FunctionId) -> bool {
    let function = subject.report.symbolized.function(function);
    matches!(function.kind, FunctionKind::Named | FunctionKind::Address)
        && memory_work(function).is_none()
        && !is_library(&function.name)
}

/// The innermost function, and no library's, that has half of the samples with what is inlined into
/// it.
fn as_written(
    subject: &Subject<'_>,
    is_own: impl Fn(FunctionId) -> bool,
) -> Option<(LabelId, Interval)> {
    let labels = &subject.report.labels;
    let mut own = vec![(0_u64, 0); labels.all().len()];
    for sample in subject.report.shown_samples() {
        let leaf = subject.profile.stack(sample.node).next();
        for (at, label) in leaf.into_iter().flat_map(|leaf| labels.of_frame(leaf)).enumerate() {
            let (count, inner) = &mut own[*label as usize];
            *count = count.saturating_add(sample.count);
            *inner = at.max(*inner);
        }
    }
    let all = subject.table().recorded;
    let is_meant = |label: LabelId| is_own(labels.all()[label as usize].function);
    let half = (0..)
        .zip(own)
        .filter(|(label, (count, _))| *count as f64 >= all as f64 * HALF && is_meant(*label));
    let (label, (count, _)) = half.min_by_key(|(label, (_, inner))| (*inner, *label))?;
    let all = Recorded {
        count: all,
        unit: subject.table().unit,
        unplaced: Unplaced::of(subject.profile),
    };
    Some((label, all.share(count, 0)))
}

fn named(finding: Finding, name: &str, share: f64) -> Finding {
    let mut finding = finding.real("share", share);
    finding.functions.push(name.to_owned());
    finding
}

/// The functions with half of all samples, and their calls. Each stack counts once, whichever vCPU
/// it is of.
struct Calls {
    total: HashMap<LabelId, u64>,
    by_caller: HashMap<LabelId, HashMap<LabelId, u64>>,
    /// Samples in whose stacks it is the innermost function of its crate or namespace.
    innermost: HashMap<LabelId, u64>,
}

/// The functions with at least so many samples.
fn totals(subject: &Subject<'_>, least: f64) -> HashMap<LabelId, u64> {
    let texts = subject.report.labels.all().iter().enumerate();
    let by_function: HashMap<_, LabelId> =
        texts.map(|(at, label)| ((label.function, label.line), at as LabelId)).collect();
    let rows = subject.table().rows.iter().filter(|row| row.total as f64 >= least);
    let totals = rows.filter_map(|row| {
        let line = row.line.filter(|_| subject.report.options.lines);
        Some((*by_function.get(&(row.function, line))?, row.total))
    });
    totals.collect()
}

/// What is known of a label.
#[derive(Clone, Copy)]
struct Known {
    /// Whether it has half of all samples.
    is_heavy: bool,
    is_mark: bool,
    /// Its crate or namespace, if some heavy function is of it.
    module: Option<usize>,
}

impl Calls {
    fn of(subject: &Subject<'_>, total: HashMap<LabelId, u64>) -> Calls {
        let labels = &subject.report.labels;
        let function_of = |label: LabelId| {
            subject.report.symbolized.function(labels.all()[label as usize].function)
        };
        let modules: Vec<String> =
            total.keys().filter_map(|label| module(&function_of(*label).name)).collect();
        let known = |label: LabelId| {
            let function = function_of(label);
            let module = module(&function.name);
            Known {
                is_heavy: total.contains_key(&label),
                is_mark: matches!(function.kind, FunctionKind::Special(_)),
                module: module.and_then(|module| modules.iter().position(|it| *it == module)),
            }
        };
        let known: Vec<Known> = (0..labels.all().len() as LabelId).map(known).collect();
        let mut innermost: HashMap<LabelId, u64> = HashMap::new();
        let mut calls: HashMap<(LabelId, LabelId), u64> = HashMap::new();
        let mut seen: Vec<(LabelId, LabelId)> = Vec::new();
        let mut left: Vec<usize> = Vec::new();
        for sample in subject.report.shown_samples() {
            seen.clear();
            left.clear();
            let frames = subject.profile.stack(sample.node);
            let mut callee = None;
            let mut is_work = true;
            for &label in frames.flat_map(|frame| labels.of_frame(frame)) {
                let Known { is_heavy, is_mark, module } = known[label as usize];
                // Of a wait, code below is not what takes the time.
                is_work &= callee.is_some() || !is_mark;
                if let Some(module) = module
                    && is_work
                    && !left.contains(&module)
                {
                    left.push(module);
                    if is_heavy {
                        let sum = innermost.entry(label).or_default();
                        *sum = sum.saturating_add(sample.count);
                    }
                }
                let call = callee.map(|callee| (label, callee));
                callee = Some(label);
                if let Some(call) = call.filter(|call| is_heavy && call.0 != call.1)
                    && !seen.contains(&call)
                {
                    seen.push(call);
                    let sum = calls.entry(call).or_default();
                    *sum = sum.saturating_add(sample.count);
                }
            }
        }
        let mut by_caller: HashMap<LabelId, HashMap<LabelId, u64>> = HashMap::new();
        for ((caller, callee), count) in calls {
            by_caller.entry(caller).or_default().insert(callee, count);
        }
        Calls { total, by_caller, innermost }
    }

    /// The callees of a function with their samples, the heaviest first.
    fn callees(&self, of: LabelId) -> Vec<(LabelId, u64)> {
        let mut callees: Vec<(LabelId, u64)> = match self.by_caller.get(&of) {
            Some(callees) => callees.iter().map(|(label, count)| (*label, *count)).collect(),
            None => Vec::new(),
        };
        callees.sort_unstable_by_key(|(label, count)| (Reverse(*count), *label));
        callees
    }

    /// The functions below this one that have nearly all of its samples.
    fn chain(&self, of: LabelId) -> Vec<LabelId> {
        let least = self.total[&of] as f64 * CHAIN;
        let (mut chain, mut below) = (Vec::new(), of);
        loop {
            let next = self.callees(below).first().copied();
            match next.filter(|(_, count)| *count as f64 >= least) {
                // A cycle of calls ends it.
                Some((label, _)) if label != of && !chain.contains(&label) => {
                    chain.push(label);
                    below = label;
                }
                _ => return chain,
            }
        }
    }

    /// Of the candidates, the function that dominates, and the functions below it that have most of
    /// its samples.
    fn dominating(&self, candidates: Vec<LabelId>, least: f64) -> Option<(LabelId, Vec<LabelId>)> {
        let leaves =
            |label: &LabelId| self.innermost.get(label).is_some_and(|count| *count as f64 >= least);
        let is_one_of_several = |label: LabelId| {
            self.by_caller.keys().any(|caller| {
                let callees = self.callees(*caller);
                let least = self.total[caller] as f64 * WORTH;
                let mut worth = callees.iter().filter(|(_, of)| *of as f64 >= least);
                worth.clone().count() >= MANY_CALLEES && worth.any(|(callee, _)| *callee == label)
            })
        };
        let candidates = candidates.into_iter().map(|label| (label, self.chain(label)));
        let mut candidates = candidates.filter(|(label, chain)| {
            leaves(label) || !chain.is_empty() && is_one_of_several(*label)
        });
        // What calls it is the way to it, as an executor is.
        candidates.next_back()
    }
}

/// The crate or namespace of a function; `None` if its name has none.
fn module(name: &str) -> Option<String> {
    let name = name.trim_start_matches(['<', '&', '*', '(', '[']);
    let (module, _) = name.split_once("::")?;
    let is_word = module.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_word.then(|| module.to_owned())
}
