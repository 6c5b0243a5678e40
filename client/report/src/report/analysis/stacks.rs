//! Callers that are cut off, lost or guessed: what is said of them is wrong or incomplete for these
//! samples.

use std::collections::HashMap;

use super::super::broken;
use super::super::marks::Marked;
use super::super::stack_warnings::{
    BY_FRAME_POINTER, Told, about_broken, about_callers, about_truncated, of_what, where_broken,
};
use super::super::warnings::{NOTABLE, notable};
use super::{Finding, Found, Subject, score};
use unikprof_profile::profile::{Frame, SpecialFrame};
use unikprof_profile::units::share;

pub(super) const RULE: &str = "callers";

/// As `doctor` calls it bad.
const MANY_STACKS: f64 = 0.2;
/// Most callers.
const HALF: f64 = 0.5;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let counters = &subject.counters;
    let info = subject.info();
    let Marked { truncated, broken, .. } = subject.report.marked();
    let whole = subject.profile.sample_count();
    let shown = |count| format!("{} of {}", share(count, whole), of_what(info.mode));
    let part = |count: u64| count as f64 / whole.max(1) as f64;
    let told = |told: Told, score| Finding::new(RULE, score, told.finding, told.advice);
    let mut all = Vec::new();
    if notable(truncated, whole) {
        let about = about_truncated(&shown(truncated), info.depth);
        let mut finding =
            told(about, score(part(truncated), NOTABLE, MANY_STACKS)).count("truncated", truncated);
        if let Some((name, times)) = recursion(subject) {
            finding = finding
                .because(format!("`{name}` is on such a stack {times:.0} times: it calls itself"));
            finding.functions.push(name);
        }
        all.push(finding);
    }
    if notable(broken, whole) {
        let places = broken::places(subject.report.symbolized);
        let about = about_broken(&shown(broken), &places);
        let mut finding = told(about, score(part(broken), NOTABLE, MANY_STACKS));
        if let Some(place) = where_broken(&places, usize::MAX) {
            finding = finding.because(place);
        }
        all.push(finding.count("broken", broken));
    }
    if let Some(about) = about_callers(counters, info.caller_table.is_some()) {
        let guessed = counters.by_frame_pointer;
        let guessed_share = guessed as f64 / counters.sampled().max(1) as f64;
        let finding = told(about, score(guessed_share, BY_FRAME_POINTER, HALF));
        let finding = finding.because(
            "of a leaf function that has no frame, the caller's caller is shown as its caller",
        );
        all.push(finding.count("by_frame_pointer", guessed));
    }
    Ok(all)
}

/// The function that is on truncated stacks most often, if it is there more than twice on average,
/// and how often.
fn recursion(subject: &Subject<'_>) -> Option<(String, f64)> {
    let profile = subject.profile;
    let (mut stacks, mut times) = (0_u64, HashMap::<u32, u64>::new());
    for sample in profile.samples() {
        let root = profile.stack(sample.node).last();
        if root.map(|root| profile.frame(root)) != Some(Frame::Special(SpecialFrame::Truncated)) {
            continue;
        }
        stacks = stacks.saturating_add(sample.count);
        for frame in profile.stack(sample.node) {
            for label in subject.report.labels.of_frame(frame) {
                let count = times.entry(*label).or_default();
                *count = count.saturating_add(sample.count);
            }
        }
    }
    // The first of equals by its text: labels are in the order of their texts.
    let most = times.into_iter().max_by_key(|(label, count)| (*count, std::cmp::Reverse(*label)));
    let (label, count) = most?;
    let mean = count as f64 / stacks as f64;
    (mean > 2.0).then(|| (subject.text(label).to_owned(), mean))
}
