//! Checks that stacks are complete and their callers correct.

use super::check::{Check, Verdict, part_of};
use super::frame_records::PassedOver;
use crate::report::accounting::how_callers_were_found;
use crate::report::broken;
use crate::report::marks::Marked;
use crate::report::stack_warnings::{BY_FRAME_POINTER, listed, of_what, where_broken};
use unikprof_profile::profile::{Counters, Mode, Unwind};
use unikprof_profile::symbols::Symbolized;
use unikprof_profile::units::{grouped, percent};

/// Shares of cut stacks that are worth a look, and bad: totals of callers are then too small.
const LOOK: f64 = 0.01;
const BAD: f64 = 0.2;

/// What helps where the chain of frame pointers does not hold.
const KEEP_FRAMES: &str = "build that code with frame pointers (Rust: -C force-frame-pointers=yes; \
                           C: \
                           -fno-omit-frame-pointer), or record with --unwind table";

pub(super) fn of(symbolized: &Symbolized<'_>, passed_over: Option<&PassedOver>) -> Vec<Check> {
    let profile = symbolized.profile();
    let recording = profile.recording();
    let marked = Marked::of(profile);
    let whole = profile.sample_count();
    let what = of_what(recording.mode);
    let broken = broken_share(
        what,
        part_of(marked.broken, whole),
        where_broken(&broken::places(symbolized), usize::MAX),
    );
    let mut checks = vec![
        match passed_over {
            None => broken,
            Some(found) => and_passed_over(broken, found),
        },
        truncated(what, part_of(marked.truncated, whole), recording.depth),
    ];
    let counters = profile.counters();
    // Rings do not tell how callers were found.
    if counters.sampled() != 0 && recording.ring.is_none() && !recording.mode.is_heap() {
        checks.push(callers(&counters, recording.caller_table.is_some(), recording.unwind));
    }
    checks
}

pub(super) fn broken_share(what: &str, share: f64, place: Option<String>) -> Check {
    let verdict = Verdict::of_share(share, LOOK, BAD);
    let finding = match (verdict, place) {
        (Verdict::Good, _) => format!("broken stacks in {} of {what}", percent(share)),
        (_, place) => format!(
            "broken stacks, which lack their outer frames, in {} of {what}{}",
            percent(share),
            place.map_or_else(String::new, |place| format!(", {place}"))
        ),
    };
    Check::new("frame pointers", verdict, finding).advise(KEEP_FRAMES).real("broken_share", share)
}

/// The check of broken stacks, and of those that lack callers without being broken.
fn and_passed_over(mut broken: Check, found: &PassedOver) -> Check {
    let verdict = Verdict::of_share(found.share, LOOK, BAD);
    if verdict != Verdict::Good {
        broken.finding.push_str(&format!(
            "; missing callers that are not marked, because of functions that save no frame \
             pointer, in {}{}",
            percent(found.share),
            listed(&found.functions)
        ));
        broken.verdict = broken.verdict.max(verdict);
    }
    broken.advise(KEEP_FRAMES).real("passed_over_share", found.share)
}

pub(super) fn truncated(what: &str, share: f64, depth: u32) -> Check {
    Check::new(
        "depth",
        Verdict::of_share(share, LOOK, BAD),
        format!("stacks deeper than {depth} frames in {} of {what}", percent(share)),
    )
    .advise("record with a larger --depth")
    .real("truncated_share", share)
    .count("depth", depth.into())
}

/// Which way the interrupted function's caller was found.
pub(super) fn callers(counters: &Counters, has_table: bool, unwind: Unwind) -> Check {
    let guessed = part_of(counters.by_frame_pointer, counters.sampled());
    let finding = format!(
        "{}{}",
        how_callers_were_found(counters),
        match unwind {
            Unwind::FramePointers => String::new(),
            Unwind::Table => format!(
                "; {} stacks mix the table with frame pointers",
                percent(part_of(counters.mixed, counters.sampled()))
            ),
        }
    );
    Check::new("callers", Verdict::of_share(guessed, BY_FRAME_POINTER, f64::INFINITY), finding)
        .advise(if has_table {
            "the caller table does not cover that code: use all images of the guest, with \
             .eh_frame or .debug_frame"
        } else {
            "the frame pointer skips the caller of a function without its own frame (leaf \
             functions, prologues): record with a caller table: with --image, without \
             --no-caller-table"
        })
        .count("by_table", counters.by_table)
        .count("by_bytes", counters.by_bytes)
        .count("by_frame_pointer", counters.by_frame_pointer)
        .count("mixed", counters.mixed)
}

/// As [`broken_share`] and [`truncated`], where there are counters and no stacks.
pub(super) fn cut_so_far(counters: &Counters, depth: u32) -> Vec<Check> {
    let what = of_what(Mode::Cpu);
    let mut broken = broken_share(what, part_of(counters.broken, counters.sampled()), None);
    broken.finding = format!("{} ({})", broken.finding, grouped(counters.broken));
    vec![broken, truncated(what, part_of(counters.truncated, counters.sampled()), depth)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks that are broken must not hide those that only lack callers, nor the other way round.
    #[test]
    fn the_worse_of_broken_and_passed_over_decides() {
        let check = |broken, share| {
            let names = ["qsort", "walk", "map", "each"].map(str::to_owned);
            let found = PassedOver { share, functions: names.to_vec() };
            and_passed_over(broken_share("the samples", broken, None), &found)
        };
        assert_eq!(check(0.0, 0.009).verdict, Verdict::Good);
        assert_eq!(check(0.0, 0.009).advice, None);
        let look = check(0.0, 0.01);
        assert_eq!(look.verdict, Verdict::Look);
        assert!(look.advice.is_some_and(|advice| advice == KEEP_FRAMES));
        assert_eq!(
            look.finding,
            "broken stacks in 0.0 % of the samples; missing callers that are not marked, because \
             of functions \
             that save no frame pointer, in 1.0 % (qsort, walk, map)"
        );
        assert_eq!(check(0.0, 0.2).verdict, Verdict::Bad);
        assert_eq!(check(0.2, 0.0).verdict, Verdict::Bad);
        assert_eq!(check(0.2, 0.01).verdict, Verdict::Bad);
    }
}
