//! Whether a recording is all there and agrees with itself.

use super::check::{Check, Verdict};
use crate::printable::Printable;
use crate::profile::Unit;
use crate::recording::{Completeness, Recording};
use crate::units::{amount_with_unit, duration, grouped};

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
        Completeness::Incomplete(reason) => check(
            Verdict::Bad,
            format!("a part never arrived: {}", Printable(reason)),
        )
        .advise("fetch the rest with `stop`, if the guest still has it, or record again"),
        Completeness::Salvaged(reason) if recording.profile.recording().ring.is_some() => check(
            Verdict::Look,
            format!("{}; {}", Printable(reason), rings_alone(recording)),
        )
        .advise(RINGS_ALONE),
        Completeness::Salvaged(reason) => check(Verdict::Bad, Printable(reason).to_string())
            .advise("copy the file again, or record again"),
        Completeness::Complete if recording.profile.recording().ring.is_some() => {
            check(Verdict::Look, rings_alone(recording)).advise(RINGS_ALONE)
        }
        Completeness::Complete if recording.epochs == 0 => {
            check(Verdict::Bad, "the file holds no epoch".to_owned()).advise("record again")
        }
        Completeness::Complete if recording.gaps != 0 => check(
            Verdict::Look,
            format!(
                "{}, but the guest was suspended and resumed {}; what happened in between \
                 was not sampled",
                epochs(recording.epochs),
                match recording.gaps {
                    1 => "once".to_owned(),
                    gaps => format!("{gaps} times"),
                }
            ),
        )
        .advise("record again where the gap matters"),
        Completeness::Complete => check(Verdict::Good, epochs(recording.epochs)),
    }
}

const RINGS_ALONE: &str = "what ran before is not in the file; a larger ring holds more. Of a guest that still runs, `dump` \
                           fetches the counts";

/// What there is of a recording whose counts are not in the file: that of a guest that crashed, or a copy.
fn rings_alone(recording: &Recording) -> String {
    format!(
        "no counts: the file holds what was still in the guest's rings, {} of the recording",
        duration(recording.profile.recording().elapsed_ns)
    )
}

fn epochs(count: u32) -> String {
    match count {
        1 => "its one epoch arrived whole".to_owned(),
        count => format!("all its {count} epochs arrived whole"),
    }
}

fn consistent(recording: &Recording) -> Check {
    let profile = &recording.profile;
    let counters = profile.counters();
    let unit = profile.recording().mode.unit();
    let found = profile.sample_count();
    let mut wrong: Vec<String> = recording
        .contradictions
        .iter()
        .map(|text| Printable(text).to_string())
        .collect();
    wrong.extend(profile.vcpus().iter().filter_map(|vcpu| {
        Some(format!(
            "vCPU {}: {}",
            vcpu.vcpu,
            vcpu.check(profile.recording()).err()?
        ))
    }));
    if counters.counted() != found {
        wrong.push(format!(
            "the agent counted {}, but the stacks hold {}",
            amount_with_unit(counters.counted(), unit),
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
                    Unit::Nanoseconds => "nanosecond blocked",
                }
            ),
        ),
        Some(first) => {
            let more = match wrong.len() {
                1 => String::new(),
                all => format!(" (and {} more like it)", grouped(all as u64 - 1)),
            };
            Check::new("consistent", Verdict::Bad, first.clone() + &more)
        }
    };
    check
        .advise("do not use it; record again, and report it as a fault of the agent if it returns")
        .count("contradictions", wrong.len() as u64)
}
