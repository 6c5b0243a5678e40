//! What to know before trusting a profile.

use super::broken::{self, BrokenIn};
use super::functions::FunctionTable;
use super::text::row_name;
use super::units::{duration, grouped, share};
use super::{Report, shorten};
use crate::printable::Printable;
use crate::profile::Counters;

/// A share of samples from which on their absence can change the picture.
const NOTABLE: f64 = 0.01;

/// Running time whose sampling is this far from the asked rate is worth a word.
const MISSING: f64 = 0.05;

/// How many functions a warning names where stacks break, and in how many columns each.
const BROKEN_FUNCTIONS: usize = 3;
const BROKEN_NAME: usize = 48;

/// Ties further down than this row are the rule and tell nothing.
const RANKED_ROWS: usize = 5;
const RANKED_NAME: usize = 60;

/// The recording's own warnings, then the names', then what the counters and the table show.
pub(super) fn of(report: &Report<'_>, table: &FunctionTable) -> Vec<String> {
    let profile = report.symbolized.profile();
    let recording = profile.recording();
    let mut all: Vec<String> = recording
        .warnings
        .iter()
        .map(|warning| Printable(warning).to_string())
        .collect();
    all.extend(
        report
            .symbolized
            .warnings()
            .iter()
            .map(|warning| Printable(&warning.to_string()).to_string()),
    );
    for vcpu in profile.vcpus() {
        if let Err(disagree) = vcpu.counters.check() {
            all.push(format!(
                "vCPU {}: {disagree}; its profile is not complete",
                vcpu.vcpu
            ));
        }
    }
    let counters = profile.counters();
    let recorded = profile.sample_count();
    if !profile.vcpus().is_empty() && counters.recorded != recorded {
        all.push(format!(
            "the agent counted {} recorded samples, but the stacks hold {}",
            grouped(counters.recorded),
            grouped(recorded)
        ));
    }
    from_counters(
        &counters,
        recording.depth,
        recording.late_threshold_ns,
        &mut all,
    );
    if notable(counters.broken, counters.recorded) {
        let places = broken::places(report.symbolized);
        all.push(about_broken(&counters, &places));
    }
    if recording.fixed_interval {
        all.push(
            "sampled at a fixed interval: work in step with it shows too much or too little, and \
             the 95 % intervals do not tell"
                .to_owned(),
        );
    }
    from_table(report, table, &mut all);
    all
}

fn from_counters(counters: &Counters, depth: u32, late_threshold_ns: u64, all: &mut Vec<String>) {
    let of_ticks = [
        (
            counters.overflow,
            "the table of stacks was full",
            "give the agent more memory",
        ),
        (counters.lost, "the slot was busy", "sample less often"),
        (
            counters.masked,
            "the tick came without registers",
            "the guest masks its timer event; see `late` as well",
        ),
    ];
    for (count, why, advice) in of_ticks {
        if notable(count, counters.ticks) {
            all.push(format!(
                "{} of the ticks ({}) have no stack because {why}; {advice}",
                share(count, counters.ticks),
                grouped(count)
            ));
        }
    }
    if notable(counters.truncated, counters.recorded) {
        all.push(format!(
            "{} of the stacks are deeper than {depth} frames and lack their root side; record \
             with a larger depth",
            share(counters.truncated, counters.recorded)
        ));
    }
    if notable(counters.late, counters.recorded) {
        all.push(format!(
            "{} of the samples came more than {} late: they may show the code that unmasked \
             events, not the code that ran",
            share(counters.late, counters.recorded),
            duration(late_threshold_ns)
        ));
    }
    // Below a hundred, noise alone reaches the limit.
    let expected = i128::from(counters.ticks) + i128::from(counters.missing);
    if counters.missing.unsigned_abs() > 100
        && counters.missing.unsigned_abs() as f64 > expected as f64 * MISSING
    {
        all.push(format!(
            "the running time stands for {} ticks, but {} came: the timer did not keep the rate",
            grouped(expected),
            grouped(counters.ticks)
        ));
    }
}

/// How many stacks break, where, and what to do about it.
fn about_broken(counters: &Counters, places: &[BrokenIn]) -> String {
    let mut text = format!(
        "{} of the stacks end badly and lack their root side",
        share(counters.broken, counters.recorded)
    );
    let all = places
        .iter()
        .fold(0_u64, |sum, place| sum.saturating_add(place.samples));
    let Some(most) = places.first().filter(|place| place.samples != 0) else {
        return text + "; build everything with frame pointers";
    };
    let image = most.image.as_deref().unwrap_or("code of no known file");
    let part = match most.samples == all {
        true => "all".to_owned(),
        false => share(most.samples, all),
    };
    text.push_str(&format!(", {part} of these in {image}"));
    let functions: Vec<_> = most
        .functions
        .iter()
        .take(BROKEN_FUNCTIONS)
        .map(|name| shorten::name(name, BROKEN_NAME))
        .collect();
    if !functions.is_empty() {
        text.push_str(&format!(" ({})", functions.join(", ")));
    }
    text + "; build that with frame pointers, or use a build that has them"
}

fn from_table(report: &Report<'_>, table: &FunctionTable, all: &mut Vec<String>) {
    if table.recorded == 0 {
        all.push("no samples: nothing ran, or the recording was too short".to_owned());
    } else if let Some(at) = table
        .first_tie(RANKED_ROWS)
        .filter(|at| notable(table.rows[*at].own, table.recorded))
    {
        let name = |at: usize| row_name(report, &table.rows[at], RANKED_NAME);
        all.push(format!(
            "{} samples are too few to rank {:?} and {:?}: their 95 % intervals overlap; record \
             longer or more often",
            grouped(table.recorded),
            name(at),
            name(at + 1)
        ));
    }
}

fn notable(part: u64, whole: u64) -> bool {
    part != 0 && part as f64 >= whole as f64 * NOTABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(counters: Counters) -> Vec<String> {
        let mut all = Vec::new();
        from_counters(&counters, 64, 50_000, &mut all);
        all
    }

    #[test]
    fn a_sound_recording_warns_of_nothing() {
        let counters = Counters {
            ticks: 1_000,
            recorded: 980,
            lost: 9,
            idle: 11,
            missing: -40,
            truncated: 9,
            ..Counters::default()
        };
        assert_eq!(warnings(counters), [""; 0]);
    }

    #[test]
    fn each_kind_of_loss_is_told() {
        let counters = Counters {
            ticks: 1_000,
            recorded: 900,
            overflow: 30,
            lost: 30,
            masked: 40,
            truncated: 90,
            broken: 90,
            late: 90,
            missing: 500,
            ..Counters::default()
        };
        let all = warnings(counters);
        assert_eq!(all.len(), 6, "{all:#?}");
        assert!(
            all[0].starts_with("3.0 % of the ticks (30) have no stack"),
            "{}",
            all[0]
        );
        assert!(all[4].contains("more than 50.0 µs late"), "{}", all[4]);
        assert!(all[5].contains("1,500 ticks, but 1,000 came"), "{}", all[5]);
    }

    #[test]
    fn broken_stacks_are_told_with_their_place_and_the_remedy() {
        let counters = Counters {
            recorded: 1_000,
            broken: 169,
            ..Counters::default()
        };
        let place = |image: Option<&str>, functions: &[&str], samples| BrokenIn {
            image: image.map(str::to_owned),
            functions: functions.iter().map(ToString::to_string).collect(),
            samples,
        };
        let malloc = ["_int_malloc", "_int_free", "malloc", "calloc"];
        let places = [place(Some("libc.so.6"), &malloc, 160), place(None, &[], 9)];
        assert_eq!(
            about_broken(&counters, &places),
            "16.9 % of the stacks end badly and lack their root side, 94.7 % of these in libc.so.6 \
             (_int_malloc, _int_free, malloc); build that with frame pointers, or use a build that \
             has them"
        );
        assert_eq!(
            about_broken(&counters, &places[1..]),
            "16.9 % of the stacks end badly and lack their root side, all of these in code of \
             no known file; build that with frame pointers, or use a build that has them"
        );
        assert_eq!(
            about_broken(&counters, &[]),
            "16.9 % of the stacks end badly and lack their root side; build everything with frame \
             pointers"
        );
    }

    #[test]
    fn more_ticks_than_running_time_is_told_as_well() {
        let counters = Counters {
            ticks: 1_000,
            recorded: 1_000,
            missing: -500,
            ..Counters::default()
        };
        assert_eq!(warnings(counters).len(), 1);
    }

    #[test]
    fn hostile_counters_do_not_overflow() {
        warnings(Counters {
            ticks: u64::MAX,
            missing: i64::MIN,
            lost: u64::MAX,
            ..Counters::default()
        });
        warnings(Counters {
            missing: i64::MAX,
            ..Counters::default()
        });
    }
}
