//! Warnings about stacks: truncated ones, late ones, guessed callers.

use std::fmt;

use super::Report;
use super::broken::{self, BrokenIn};
use super::marks::{self, Marked};
use super::shorten;
use super::units::{duration, share};
use super::warnings::notable;
use unikprof_profile::profile::{Counters, Mode, Unit};

/// How many functions a warning names, and in how many columns each.
const FUNCTIONS: usize = 3;
const NAME: usize = 48;

/// The columns of a name beside more words.
const LATE_NAME: usize = 20;

/// A share of callers from the frame pointer alone that is worth a word.
pub(crate) const BY_FRAME_POINTER: f64 = 0.1;

/// What to do about late samples, after "if that code".
pub(crate) const UNMASK_OR_STALL: &str = "unmasks events, mask events for less time there; \
     if not, the guest was stalled: record on a less busy host, or on hardware instead of \
     an emulator";

/// What was found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) finding: String,
    pub(super) advice: String,
}

impl Told {
    fn new(finding: impl Into<String>, advice: impl Into<String>) -> Told {
        Told { finding: finding.into(), advice: advice.into() }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.finding, self.advice)
    }
}

pub(super) fn add(report: &Report<'_>, counters: &Counters, all: &mut Vec<String>) {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let recording = profile.recording();
    let Marked { truncated, broken, .. } = report.marked();
    let whole = profile.sample_count();
    let part = |count| format!("{} of {}", share(count, whole), of_what(recording.mode));
    if notable(truncated, whole) {
        all.push(about_truncated(&part(truncated), recording.depth).to_string());
    }
    if notable(broken, whole) {
        all.push(about_broken(&part(broken), &broken::places(symbolized)).to_string());
    }
    if notable(counters.late, counters.sampled()) {
        all.push(about_late(counters, recording.late_threshold_ns, &marks::late_under(symbolized)));
    }
    if recording.mode.is_heap() {
        // No code was interrupted: every frame is a call.
        return;
    }
    let guessed = about_callers(counters, recording.caller_table.is_some());
    all.extend(guessed.map(|told| told.to_string()));
}

/// What a share of the counts is a share of.
pub(crate) fn of_what(mode: Mode) -> &'static str {
    match mode.unit() {
        Unit::Samples => "the samples",
        Unit::Nanoseconds => "the blocked time",
        Unit::Bytes | Unit::Objects => "the sampled allocations",
    }
}

pub(super) fn about_truncated(part: &str, depth: u32) -> Told {
    Told::new(
        format!("stacks deeper than {depth} frames, whose outer frames are cut, in {part}"),
        "record with a larger --depth",
    )
}

/// How many stacks break, where, and what to do about it.
pub(super) fn about_broken(part: &str, places: &[BrokenIn]) -> Told {
    let text = format!("broken stacks (callers lost) in {part}");
    match where_broken(places, 0) {
        None => Told::new(text, "build all code with frame pointers"),
        Some(place) => Told::new(
            format!("{text}, {place}"),
            "build it with frame pointers, or use --unwind table",
        ),
    }
}

/// Where most stacks break, in words, with the first functions; `None` where no stack carries the
/// mark.
pub(crate) fn where_broken(places: &[BrokenIn], functions: usize) -> Option<String> {
    let all = places.iter().fold(0_u64, |sum, place| sum.saturating_add(place.samples));
    let most = places.first().filter(|place| place.samples != 0)?;
    let image = most.image.as_deref().unwrap_or("an unknown file");
    let part = if most.samples == all { "all".to_owned() } else { share(most.samples, all) };
    let functions = listed(most.functions.get(..functions).unwrap_or(&most.functions));
    Some(format!("{part} of them in {image}{functions}"))
}

/// The first functions in parentheses after a space; nothing if there are none.
pub(crate) fn listed(functions: &[String]) -> String {
    let shown: Vec<_> =
        functions.iter().take(FUNCTIONS).map(|name| shorten::name(name, NAME)).collect();
    if shown.is_empty() {
        return String::new();
    }
    format!(" ({})", shown.join(", "))
}

pub(super) fn about_late(
    counters: &Counters,
    threshold_ns: u64,
    under: &[(String, u64)],
) -> String {
    let late = format!(
        "{} of the samples are over {} late",
        share(counters.late, counters.sampled()),
        duration(threshold_ns)
    );
    const WHY: &str = "masked events, or a stalled host";
    match under.first() {
        None => format!("{late}: {WHY}; they may show code that ran after the time they were due"),
        Some((function, _)) => format!(
            "{late}, most in {}: {WHY}; mask events for less time",
            shorten::name(function, LATE_NAME)
        ),
    }
}

/// The functions under which most late samples lie, in words; `None` where there are none.
pub(crate) fn where_late(under: &[(String, u64)]) -> Option<String> {
    let all = under.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    let functions: Vec<String> = under
        .iter()
        .take(FUNCTIONS)
        .map(|(name, count)| format!("{} ({})", shorten::name(name, NAME), share(*count, all)))
        .collect();
    (!functions.is_empty()).then(|| functions.join(", "))
}

pub(super) fn about_callers(counters: &Counters, has_table: bool) -> Option<Told> {
    let guessed = share(counters.by_frame_pointer, counters.sampled());
    let many = counters.by_frame_pointer as f64 >= counters.sampled() as f64 * BY_FRAME_POINTER;
    if counters.sampled() == 0 || !many {
        return None;
    }
    let guessed = format!("{guessed} of the callers are by frame pointer");
    Some(match has_table {
        false => Told::new(
            format!("no caller table: {guessed}, which skips callers of leaf functions"),
            "use --image, not --no-caller-table",
        ),
        true => Told::new(
            format!("{guessed}: the caller table lacks that code"),
            "name all images, or give the agent more memory",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_stacks_are_told_with_their_place_and_the_remedy() {
        let place = |image: Option<&str>, functions: &[&str], samples| BrokenIn {
            image: image.map(str::to_owned),
            functions: functions.iter().map(ToString::to_string).collect(),
            samples,
        };
        let malloc = ["_int_malloc", "_int_free", "malloc", "calloc"];
        let places = [place(Some("libc.so.6"), &malloc, 160), place(None, &[], 9)];
        assert_eq!(
            about_broken("16.9 % of the samples", &places).to_string(),
            "broken stacks (callers lost) in 16.9 % of the samples, 94.7 % of them in libc.so.6; \
             build it with frame pointers, or use --unwind table"
        );
        assert_eq!(
            about_broken("16.9 % of the samples", &places[1..]).to_string(),
            "broken stacks (callers lost) in 16.9 % of the samples, all of them in an unknown \
             file; build it with frame pointers, or use --unwind table"
        );
        assert_eq!(
            about_broken("16.9 % of the samples", &[]).to_string(),
            "broken stacks (callers lost) in 16.9 % of the samples; build all code with frame \
             pointers"
        );
    }

    #[test]
    fn late_samples_are_told_with_the_code_that_unmasked() {
        let counters = Counters { recorded: 1_000, late: 40, ..Counters::default() };
        let under = [("irq_enable".to_owned(), 30), ("unlock".to_owned(), 10)];
        let text = about_late(&counters, 50_000, &under);
        assert!(
            text.starts_with("4.0 % of the samples are over 50 µs late, most in irq_enable: "),
            "{text}"
        );
        let text = about_late(&counters, 50_000, &[]);
        assert!(text.contains("they may show code that ran after"), "{text}");
    }

    #[test]
    fn guessed_callers_are_told_by_what_would_help() {
        let counters = |by_frame_pointer| Counters {
            recorded: 1_000,
            by_frame_pointer,
            ..Counters::default()
        };
        let about = |by_frame_pointer, has_table| {
            about_callers(&counters(by_frame_pointer), has_table).map(|told| told.to_string())
        };
        assert_eq!(about(99, false), None);
        assert!(
            about(900, false).is_some_and(
                |text| text.contains("90.0 % of the callers") && text.contains("--image")
            )
        );
        assert!(
            about(900, true)
                .is_some_and(|text| text.starts_with("90.0 % of the callers are by frame pointer"))
        );
        assert_eq!(about_callers(&Counters::default(), false), None);
    }
}
