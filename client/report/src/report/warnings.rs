//! A report's warnings.

use std::borrow::Cow;
use std::io::{self, Write};

use super::functions::FunctionTable;
use super::text::ends;
use super::uncertainty::{LongRun, Of, Unplaced};
use super::units::{amount_with_unit, grouped, percent, share};
use super::{Report, stack_warnings};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Came, Counters, Mode, Profile, SampledTime, Unit};

/// A share of samples from which on their absence can change the picture.
pub(super) const NOTABLE: f64 = 0.01;

/// Time whose sampling is this far from the asked rate is worth a word.
const MISSING: f64 = 0.05;

/// Below this number of missing samples, noise alone reaches that.
const MISSING_NOISE: u64 = 100;

/// A share of the wanted time from which on steal is worth a word.
pub(crate) const STOLEN: f64 = 0.1;

/// The recording's own warnings, then the names', then what the counters and the samples show.
pub(super) fn of(report: &Report<'_>) -> Vec<String> {
    let profile = report.symbolized.profile();
    let recording = profile.recording();
    let mut all: Vec<String> =
        recording.warnings.iter().map(|warning| Printable(warning).to_string()).collect();
    all.extend(
        report
            .symbolized
            .warnings()
            .iter()
            .map(|warning| Printable(&warning.to_string()).to_string()),
    );
    let counters = profile.counters();
    from_sums(profile, &mut all);
    if recording.mode.is_heap() {
        super::heap::warn(profile, &mut all);
    } else {
        from_counters(&counters, recording.mode, &mut all);
    }
    stack_warnings::add(report.symbolized, &counters, &mut all);
    let stolen = profile.runstate().stolen_share();
    // Waiting is not made longer by it.
    if let Some(stolen) = stolen.filter(|s| *s >= STOLEN && recording.mode.samples_time()) {
        all.push(format!("{}: {STILL_CORRECT}; {LESS_STEAL}", stolen_words(stolen)));
    }
    if recording.fixed_interval {
        all.push(
            "sampled at a fixed interval: periodic work in step with it is over- or \
             underrepresented, which \
             the 95 % intervals do not show"
                .to_owned(),
        );
    }
    from_samples(report, &mut all);
    all
}

/// The most that are written before the accounting is asked for.
const FIRST: usize = 3;

/// Writes the first warnings, each in at most two lines.
pub fn write_first(all: &[String], columns: usize, out: &mut impl Write) -> io::Result<()> {
    for warning in all.iter().take(FIRST) {
        super::text::write_paragraph("warning: ", &in_two_lines(warning, columns), columns, out)?;
    }
    if all.len() > FIRST {
        writeln!(out, "and {} more: `report --accounting` shows all warnings", all.len() - FIRST)?;
    }
    Ok(())
}

/// A warning without its middle where it is too long for two lines; the advice, behind the last
/// semicolon, stays whole.
fn in_two_lines(warning: &str, columns: usize) -> Cow<'_, str> {
    // Words do not fill a line to its end.
    const RAGGED: usize = 12;
    let room = (2 * columns).saturating_sub(2 * "warning: ".len() + RAGGED);
    let length = warning.chars().count();
    if length <= room {
        return warning.into();
    }
    let (what, advice) = warning.rsplit_once("; ").unwrap_or((warning, ""));
    let left = room.saturating_sub(advice.chars().count() + 4);
    let what: String = what.chars().take(left).collect();
    let what = what.rsplit_once(' ').map_or("", |(words, _)| words);
    if advice.is_empty() {
        format!("{what} …").into()
    } else {
        format!("{what} …; {advice}").into()
    }
}

/// Sums that do not agree.
fn from_sums(profile: &Profile, all: &mut Vec<String>) {
    for vcpu in profile.vcpus() {
        if let Err(disagree) = vcpu.check(profile.recording()) {
            all.push(format!("vCPU {}: {disagree}; its profile is incomplete", vcpu.vcpu));
        }
    }
    let uncounted = profile.uncounted();
    if let Some((counted, found, unit)) = uncounted.filter(|_| !profile.vcpus().is_empty()) {
        all.push(format!(
            "the agent counted {}, but the stacks add up to {}",
            amount_with_unit(counted, unit),
            amount_with_unit(found, unit)
        ));
    }
}

fn from_counters(counters: &Counters, mode: Mode, all: &mut Vec<String>) {
    let of_ticks = [
        (
            counters.aged,
            "memory was full before they were fetched ([aged])",
            "give the agent more memory, fetch more often, or choose a shorter window",
        ),
        (counters.overflow, "the stack table was full", "give the agent more memory"),
        (counters.lost, "the stack table was locked", "use a lower rate"),
        (
            counters.masked,
            "they arrived without registers",
            "the guest masks its timer event; see also `late`",
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
    let blocked = counters.blocked_in_all();
    if notable(counters.blocked_aged, blocked) {
        all.push(format!(
            "{} of the blocked time ({}) has no stack because memory was full before it was \
             fetched ([aged]); give \
             the agent more memory, or fetch more often",
            share(counters.blocked_aged, blocked),
            amount_with_unit(counters.blocked_aged, mode.unit())
        ));
    }
    if notable(counters.blocked_overflow, blocked) {
        all.push(format!(
            "{} of the blocked time ({}) has no stack because the stack table was full, or the \
             guest did not report where it blocked; give the agent more memory, or call \
             `on_block` with registers at every wait",
            share(counters.blocked_overflow, blocked),
            amount_with_unit(counters.blocked_overflow, mode.unit())
        ));
    }
    for came in counters.sampled_kinds(mode).filter(is_off_rate) {
        all.push(format!(
            "the {} corresponds to {} samples, but {} arrived: {}",
            came.time,
            grouped(came.due()),
            grouped(came.samples),
            match came.time {
                SampledTime::Running => "the timer did not keep up",
                SampledTime::Blocked => BLOCKED_APART,
            }
        ));
    }
}

/// Why blocked time and its samples can be far apart.
pub(crate) const BLOCKED_APART: &str = "the guest waits where it does not call on_block, or what \
                                        runs behind waits has too few samples";

/// Whether the samples that came and those that were due are too far apart for noise.
pub(crate) fn is_off_rate(came: &Came) -> bool {
    let missing = came.missing.unsigned_abs();
    missing > MISSING_NOISE && missing as f64 > came.due() as f64 * MISSING
}

/// How much of the wanted time was stolen, in words.
pub(crate) fn stolen_words(share: f64) -> String {
    format!("{} of the time in which the guest wanted to run was stolen", percent(share))
}

/// What to do about stolen time.
pub(crate) const LESS_STEAL: &str = "give the guest more weight, or use a less busy host";

/// What stolen time does to a profile.
pub(crate) const STILL_CORRECT: &str =
    "shares are of running time and remain correct, but there are fewer samples";

/// How far another recording may differ, if by more than the intervals of this one.
pub fn about_long_run(table: &FunctionTable) -> Option<String> {
    let LongRun { row, of, share } = table.long_run?;
    Some(format!(
        "another recording may differ by more: in the long run `{}`{} has {} %",
        table.rows[row].text,
        match of {
            Of::Own => "",
            Of::Total => " with what it calls",
        },
        ends(&share, " to ")
    ))
}

fn from_samples(report: &Report<'_>, all: &mut Vec<String>) {
    let recording = report.symbolized.profile().recording();
    if report.weights.recorded == 0 {
        if recording.is_incomplete {
            return;
        }
        let is_inside = recording.inside().is_some();
        let none = match recording.unit() {
            Unit::Samples if is_inside => {
                "no samples: none is known to be of these spans".to_owned()
            }
            Unit::Samples => {
                "no samples: the guest did not run, or the recording was too short".to_owned()
            }
            Unit::Nanoseconds => {
                "no blocked time: the guest never blocked, or the recording was too short"
                    .to_owned()
            }
            Unit::Bytes | Unit::Objects => {
                "no allocations: the guest allocated less than what is sampled, or it does not \
                 report its \
                 allocations to the agent"
                    .to_owned()
            }
        };
        // It says more than the others.
        all.insert(0, none);
        return;
    }
    if let Some(unplaced) = Unplaced::of(report.symbolized.profile()) {
        let samples = match unplaced.count() {
            1 => "1 sample".to_owned(),
            count => format!("{} samples", grouped(count)),
        };
        all.push(format!(
            "{samples} cannot be attributed to a function ({}); the intervals include their \
             worst-case effect",
            unplaced.kinds()
        ));
    }
}

pub(crate) fn notable(part: u64, whole: u64) -> bool {
    part != 0 && part as f64 >= whole as f64 * NOTABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(counters: Counters) -> Vec<String> {
        let mut all = Vec::new();
        from_counters(&counters, Mode::Cpu, &mut all);
        all
    }

    #[test]
    fn a_sound_recording_warns_of_nothing() {
        let counters = Counters {
            ticks: 1_000,
            recorded: 980,
            lost: 9,
            idle: 11,
            missing: Some(-40),
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
            blocked: 90,
            blocked_overflow: 10,
            missing: Some(500),
            ..Counters::default()
        };
        let all = warnings(counters);
        assert_eq!(all.len(), 5, "{all:#?}");
        assert!(all[0].starts_with("3.0 % of the ticks (30) have no stack"), "{}", all[0]);
        assert!(all[3].starts_with("10.0 % of the blocked time (10 samples)"), "{}", all[3]);
        assert!(all[4].contains("1,500 samples, but 1,000 arrived"), "{}", all[4]);
    }

    #[test]
    fn more_ticks_than_running_time_is_told_as_well() {
        let counters =
            Counters { ticks: 1_000, recorded: 1_000, missing: Some(-500), ..Counters::default() };
        assert_eq!(warnings(counters).len(), 1);
    }

    /// Guards against two errors that cancel each other: samples of running time that are missing,
    /// and blocked ones that are too many.
    #[test]
    fn running_and_blocked_time_are_compared_each_for_itself() {
        let counters = Counters {
            ticks: 1_000,
            recorded: 1_000,
            blocked: 9_000,
            missing: Some(10),
            missing_blocked: Some(-700),
            ..Counters::default()
        };
        let kinds: Vec<_> = counters.sampled_kinds(Mode::Wall).collect();
        let running = Came { time: SampledTime::Running, samples: 1_000, missing: 710 };
        let blocked = Came { time: SampledTime::Blocked, samples: 9_000, missing: -700 };
        assert_eq!(kinds, [running, blocked]);
        let mut all = Vec::new();
        from_counters(&counters, Mode::Wall, &mut all);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].contains("running time corresponds to 1,710 samples, but 1,000 arrived"));
        assert!(all[1].contains("blocked time corresponds to 8,300 samples, but 9,000 arrived"));
        assert_eq!(warnings(Counters { missing_blocked: None, ..counters }), [""; 0]);
    }

    #[test]
    fn hostile_counters_do_not_overflow() {
        warnings(Counters {
            ticks: u64::MAX,
            missing: Some(i64::MIN),
            lost: u64::MAX,
            blocked: u64::MAX,
            blocked_overflow: u64::MAX,
            ..Counters::default()
        });
        warnings(Counters { missing: Some(i64::MAX), ..Counters::default() });
    }
}
