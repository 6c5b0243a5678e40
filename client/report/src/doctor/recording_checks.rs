//! Checks that a recording is complete and consistent.

use super::check::{Check, Verdict};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Unit;
use unikprof_profile::recording::{Completeness, Recording};
use unikprof_profile::units::{amount_with_unit, duration, grouped};

pub(super) fn of(recording: &Recording) -> Vec<Check> {
    vec![complete(recording), consistent(recording)]
}

fn complete(recording: &Recording) -> Check {
    let check = |verdict, finding: String| {
        Check::new("complete", verdict, finding)
            .count("epochs", recording.epochs.into())
            .count("gaps", recording.gaps.into())
    };
    match &recording.completeness {
        Completeness::Incomplete(reason) => {
            check(Verdict::Bad, format!("a part is missing: {}", Printable(reason)))
                .advise("fetch the rest with `stop`, if the guest still has it, or record again")
        }
        Completeness::Salvaged(reason) if recording.profile.recording().ring.is_some() => {
            check(Verdict::Look, format!("{}; {}", Printable(reason), rings_alone(recording)))
                .advise(RINGS_ALONE)
        }
        Completeness::Salvaged(reason) => check(Verdict::Bad, Printable(reason).to_string())
            .advise("copy the file again, or record again"),
        Completeness::Complete if recording.profile.recording().ring.is_some() => {
            check(Verdict::Look, rings_alone(recording)).advise(RINGS_ALONE)
        }
        Completeness::Complete if recording.epochs == 0 => {
            check(Verdict::Bad, "the file contains no counts".to_owned()).advise("record again")
        }
        Completeness::Complete if recording.gaps != 0 => check(
            Verdict::Look,
            format!(
                "{}, but the guest was suspended and resumed {}; the time in between was not \
                 sampled",
                epochs(recording.epochs),
                match recording.gaps {
                    1 => "once".to_owned(),
                    gaps => format!("{gaps} times"),
                }
            ),
        )
        .advise("record again if the gap matters"),
        Completeness::Complete => check(Verdict::Good, epochs(recording.epochs)),
    }
}

const RINGS_ALONE: &str = "the file does not go further back; a larger ring holds more. If the \
                           guest is still running, `dump` \
                           fetches the counts";

/// What there is of a recording whose counts are not in the file: that of a guest that crashed, or
/// a copy.
fn rings_alone(recording: &Recording) -> String {
    format!(
        "no counts: the file has only the contents of the guest's rings, the last {} of the \
         recording",
        duration(recording.profile.recording().elapsed_ns)
    )
}

fn epochs(count: u32) -> String {
    match count {
        1 => "its epoch is complete".to_owned(),
        count => format!("all {count} epochs are complete"),
    }
}

fn consistent(recording: &Recording) -> Check {
    let profile = &recording.profile;
    let unit = profile.recording().unit();
    let mut wrong: Vec<String> =
        recording.contradictions.iter().map(|text| Printable(text).to_string()).collect();
    wrong.extend(profile.vcpus().iter().filter_map(|vcpu| {
        Some(format!("vCPU {}: {}", vcpu.vcpu, vcpu.check(profile.recording()).err()?))
    }));
    if let Some((counted, found, unit)) = profile.uncounted() {
        wrong.push(format!(
            "the agent counted {}, but the stacks add up to {}",
            amount_with_unit(counted, unit),
            amount_with_unit(found, unit)
        ));
    }
    let check = match wrong.first() {
        None => Check::new(
            "consistent",
            Verdict::Good,
            format!(
                "every tick and every {} is accounted for",
                match unit {
                    Unit::Samples => "sample",
                    Unit::Nanoseconds => "blocked nanosecond",
                    Unit::Bytes | Unit::Objects => "sampled allocation",
                }
            ),
        ),
        Some(first) => {
            let more = match wrong.len() {
                1 => String::new(),
                all => format!(" (and {} more)", grouped(all as u64 - 1)),
            };
            Check::new("consistent", Verdict::Bad, first.clone() + &more)
        }
    };
    check
        .advise(
            "do not use this recording; record again, and report a bug in the agent if the \
                 problem returns",
        )
        .count("contradictions", wrong.len() as u64)
}
