//! Checks of recordings of allocations.

use super::check::{Check, Verdict, part_of};
use super::sampling_checks::{aged, lost, overhead};
use crate::report::heap::{Arena, ExactTotal, MANY, explained, judged_against};
use unikprof_profile::profile::{Heap, Measure, Mode, Profile};
use unikprof_profile::recording::Recording;
use unikprof_profile::timeline::Window;
use unikprof_profile::units::{grouped, percent, share, size};

/// With fewer samples than this, the sum is known to a fifth at best.
const FEW: u64 = 100;

/// Standard deviations between the samples' sum and the exact one that chance seldom makes, and
/// that it never does.
const FAR: f64 = 4.0;
const TOO_FAR: f64 = 8.0;

/// Parts that are not followed of the sampled allocations, in mode live of those that may be held.
const LOOK: f64 = 0.01;
const BAD: f64 = 0.05;

pub(super) fn of(recording: &Recording) -> Vec<Check> {
    let profile = &recording.profile;
    let counters = profile.counters();
    let is_live = profile.recording().mode == Mode::Live;
    let mut checks = vec![
        enough(profile),
        lost(&counters, "sampled allocations"),
        aged(&counters, "sampled allocations"),
        full(
            counters.overflow,
            judged_against(counters.overflow, profile),
            profile.recording().mode,
            profile.recording().interval_bytes,
        ),
    ];
    if is_live {
        checks.push(frees(profile));
        checks.extend(memory(recording));
    } else {
        checks.extend(exact(profile));
    }
    checks.push(overhead(profile));
    checks
}

fn enough(profile: &Profile) -> Check {
    let heap = profile.heap.as_ref();
    let all = heap.map(Heap::total).unwrap_or_default();
    let info = profile.recording();
    let bounds = all.of(Measure::Bytes).bounds(info.interval_bytes as f64);
    let finding = format!(
        "{} samples stand for {}; the interval is {} to {}",
        grouped(all.samples),
        size(bounds.value as u64),
        size(bounds.low as u64),
        size(bounds.high as u64)
    );
    let more_often = format!("sample more often: --every below {}", size(info.interval_bytes));
    match all.samples {
        0 => Check::new(
            "enough",
            Verdict::Bad,
            "no samples: the guest allocated nothing, or does not report its allocations to the \
             agent",
        )
        .advise(format!(
            "see docs/guide/memory.md for the calls that an allocator makes; {more_often}"
        )),
        few if few < FEW => Check::new("enough", Verdict::Look, finding)
            .advise(format!("record for longer, or {more_often}")),
        _ => Check::new("enough", Verdict::Good, finding),
    }
    .count("samples", all.samples)
}

/// Sampled allocations without a stack, or that no place was left for in the table of live ones;
/// `of` is the number that they are judged against.
pub(super) fn full(overflow: u64, of: u64, mode: Mode, interval_bytes: u64) -> Check {
    let part = part_of(overflow, of);
    let finding = match (overflow, mode) {
        (0, _) => "every sampled allocation found a place".to_owned(),
        (count, Mode::Live) => format!(
            "{} sampled allocations are not followed because the table of live samples or of \
             stacks was full, beside {} \
             that are held: more may be held than is shown",
            grouped(count),
            grouped(of.saturating_sub(count))
        ),
        (count, _) => format!(
            "{} of the sampled allocations ({}) are not followed because the stack table was full",
            share(count, of),
            grouped(count)
        ),
    };
    let advice = match mode {
        Mode::Live => format!(
            "give the agent more memory for live samples, or sample less often: --every above {}",
            size(interval_bytes)
        ),
        _ => "give the agent more memory".into(),
    };
    Check::new("overflow", Verdict::of_share(part, LOOK, BAD), finding)
        .advise(advice)
        .count("overflow", overflow)
        .real("share", part)
}

fn frees(profile: &Profile) -> Check {
    let vcpus = profile.vcpus().iter();
    let freed: u64 = vcpus.fold(0, |sum, vcpu| sum.saturating_add(vcpu.freed_samples));
    let sampled = profile.counters().recorded;
    let (verdict, finding) = match (freed, sampled) {
        (0, sampled) if sampled >= MANY => (
            Verdict::Bad,
            format!(
                "none of {} sampled allocations was freed: the guest's allocator seems to report \
                 no frees",
                grouped(sampled)
            ),
        ),
        (freed, _) => (
            Verdict::Good,
            // Also of other recordings of this mode, so that they are no part of those that were
            // sampled for this one.
            format!("{} sampled allocations were freed", grouped(freed)),
        ),
    };
    Check::new("frees", verdict, finding)
        .advise("call on_free (in C unikprof_on_free) wherever the allocator frees")
        .count("freed", freed)
        .count("sampled", sampled)
}

/// The samples' sum against the exact one.
fn exact(profile: &Profile) -> Option<Check> {
    let check = ExactTotal::of(profile)?;
    let verdict = match check.deviations {
        far if far >= TOO_FAR => Verdict::Bad,
        far if far >= FAR => Verdict::Look,
        _ => Verdict::Good,
    };
    let finding = format!(
        "the samples say {} of the {} that were counted, {:.1} standard deviations apart",
        percent(check.ratio),
        size(check.exact),
        check.deviations
    );
    Some(
        Check::new("exact", verdict, finding)
            .advise(
                "see `lost`, `aged` and `overflow`; if these are small, report a bug in the agent",
            )
            .count("allocated_bytes", check.exact)
            .real("deviations", check.deviations),
    )
}

/// How much of the used memory is explained.
fn memory(recording: &Recording) -> Option<Check> {
    let timeline = recording.timeline.as_ref()?;
    let arenas = Arena::of(&timeline.counters(Window::ALL));
    let part = explained(&recording.profile, &arenas)?;
    let used = arenas.iter().fold(0, |sum: u64, arena| sum.saturating_add(arena.used));
    Some(
        Check::new(
            "explained",
            Verdict::Good,
            format!(
                "{} of the {} that the guest's arenas use was allocated during the recording and \
                 is still held",
                percent(part),
                size(used)
            ),
        )
        .real("share", part)
        .count("used_bytes", used),
    )
}
