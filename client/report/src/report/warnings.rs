//! A report's warnings.

use std::io::{self, Write};

use super::functions::{FunctionRow, FunctionTable};
use super::text::ends;
use super::uncertainty::{LongRun, Of, Unplaced};
use super::units::{amount_with_unit, grouped, percent, share, size};
use super::{Report, shorten, stack_warnings};
use crate::finding::paragraph;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Came, Counters, Mode, Profile, RecordingInfo, SampledTime, Unit};

/// A share of samples from which on their absence can change the picture.
pub(super) const NOTABLE: f64 = 0.01;

/// Time whose sampling is this far from the asked rate is worth a word.
const MISSING: f64 = 0.05;

/// Below this number of missing samples, noise alone reaches that.
const MISSING_NOISE: u64 = 100;

/// A share of the wanted time from which on steal is worth a word.
pub(crate) const STOLEN: f64 = 0.1;

/// A share of the CPU for the profiler itself from which on it is worth a word.
pub(crate) const COSTLY: f64 = 0.05;

/// Why a tick is lost: whoever fetches holds the table of stacks, for long if the host stops it.
const LOCKED: &str = "the table was in use, maybe by a stopped vCPU";

/// What to do about it.
pub(crate) const LESS_LOCKED: &str = "fetch less often, or use a less busy host";

/// What the profiler took from the guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// The share of the running time that sampling and its timer took.
    pub(crate) sampling: f64,
    /// The share of the recording that the agent's server took.
    pub(crate) server: f64,
}

impl Costs {
    /// `None` if it was not measured, as of samples from rings.
    pub(crate) fn of(profile: &Profile) -> Option<Costs> {
        let info = profile.recording();
        let sampling = profile.cost_share().filter(|_| info.ring.is_none())?;
        // Of guests side by side the time is that of the longest, and the work that of all.
        let guests = info.guests.len().max(1) as f64;
        let server = info.server_ns as f64 / info.elapsed_ns.max(1) as f64 / guests;
        Some(Costs { sampling, server })
    }

    /// The larger share, which is judged.
    pub(crate) fn share(&self) -> f64 {
        self.sampling.max(self.server)
    }

    fn words(&self) -> String {
        format!(
            "sampling took {} of the running time, the agent's server {} of the recording",
            percent(self.sampling),
            percent(self.server)
        )
    }

    /// What to do about them.
    pub(crate) fn advice(&self, info: &RecordingInfo) -> String {
        match info.mode {
            mode if mode.is_heap() => format!(
                "sample less often (--every above {}), or use a smaller --depth",
                size(info.interval_bytes)
            ),
            Mode::OffCpu => "use a smaller --depth".into(),
            _ => "use a lower rate (-F) or a smaller --depth".into(),
        }
    }
}

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
        from_counters(&counters, recording, &mut all);
    }
    stack_warnings::add(report, &counters, &mut all);
    let stolen = profile.runstate().stolen_share();
    // Waiting is not made longer by it.
    if let Some(stolen) = stolen.filter(|s| *s >= STOLEN && recording.mode.samples_time()) {
        all.push(about_stolen(stolen));
    }
    let costs = Costs::of(profile).filter(|costs| costs.share() >= COSTLY);
    all.extend(costs.map(|costs| format!("{}; {}", costs.words(), costs.advice(recording))));
    if recording.fixed_interval {
        all.push(FIXED_INTERVAL.to_owned());
    }
    from_samples(report, &mut all);
    all
}

/// What a warning begins with.
pub(super) const HEAD: &str = "warning: ";

/// The most that are written before the accounting is asked for.
const FIRST: usize = 3;

/// What shows all warnings of a recording.
pub const ALL: &str = "`report --accounting`";

/// Writes the first warnings, each in at most two lines, and what shows the others.
pub fn write_first(
    all: &[String],
    shown_by: &str,
    columns: usize,
    out: &mut (impl Write + ?Sized),
) -> io::Result<()> {
    for warning in all.iter().take(FIRST) {
        let mut text = String::new();
        paragraph(&mut text, HEAD, &in_two_lines(warning, columns), columns);
        out.write_all(text.as_bytes())?;
    }
    if all.len() > FIRST {
        writeln!(out, "and {} more: {shown_by} shows all warnings", all.len() - FIRST)?;
    }
    Ok(())
}

/// A warning in two lines of at least `LEAST` columns: names are shortened first, and then a fact
/// that quotes too much is cut before the advice, which is behind the last semicolon.
fn in_two_lines(warning: &str, columns: usize) -> String {
    const LEAST: usize = 80;
    const NAME: usize = 20;
    let fits = |text: &str| {
        let mut lines = String::new();
        paragraph(&mut lines, HEAD, text, columns.max(LEAST));
        lines.lines().count() <= 2
    };
    let mut text = shorten::names_in(warning, NAME, fits);
    while !fits(&text)
        && let (fact, advice) = text.rsplit_once("; ").unwrap_or((&text, ""))
        && let Some((kept, _)) = fact.trim_end_matches(" …").rsplit_once(' ')
    {
        let end = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        text = format!("{kept} …{end}");
    }
    text
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

fn from_counters(counters: &Counters, info: &RecordingInfo, all: &mut Vec<String>) {
    let mode = info.mode;
    let of_ticks = [
        (
            counters.aged,
            "memory was full ([aged])",
            "give the agent more memory, or fetch more often",
        ),
        (counters.overflow, "the stack table was full", "give the agent more memory"),
        (counters.lost, LOCKED, LESS_LOCKED),
        (
            counters.masked,
            "they arrived without registers",
            "the guest masks its timer event; see also `late`",
        ),
    ];
    for (count, why, advice) in of_ticks {
        if notable(count, counters.ticks) {
            all.push(format!(
                "{} of the ticks ({}) have no stack: {why}; {advice}",
                share(count, counters.ticks),
                grouped(count)
            ));
        }
    }
    let blocked = counters.blocked_in_all();
    if notable(counters.blocked_aged, blocked) {
        all.push(format!(
            "{} of the blocked time ({}) has no stack: memory was full ([aged]); give the agent \
             more memory, or fetch more often",
            share(counters.blocked_aged, blocked),
            amount_with_unit(counters.blocked_aged, mode.unit())
        ));
    }
    if notable(counters.blocked_overflow, blocked) {
        all.push(format!(
            "{} of the blocked time ({}) has no stack: full table or no registers; give the agent \
             memory, or `on_block` registers",
            share(counters.blocked_overflow, blocked),
            amount_with_unit(counters.blocked_overflow, mode.unit())
        ));
    }
    // Of a part that the rings hold, the times at its ends are interpolated.
    let kinds = counters.sampled_kinds(mode).filter(|_| info.ring.is_none());
    for came in kinds.filter(is_off_rate) {
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
pub(crate) const BLOCKED_APART: &str =
    "some waits do not call on_block, or code after waits is undersampled";

/// Whether the samples that came and those that were due are too far apart for noise.
pub(crate) fn is_off_rate(came: &Came) -> bool {
    let missing = came.missing.unsigned_abs();
    missing > MISSING_NOISE && missing as f64 > came.due() as f64 * MISSING
}

/// How much of the wanted time was stolen, in words.
pub(crate) fn stolen_words(share: f64) -> String {
    format!("{} of the time the guest wanted to run was stolen", percent(share))
}

fn about_stolen(share: f64) -> String {
    format!("{} ({STILL_CORRECT}); {LESS_STEAL}", stolen_words(share))
}

const FIXED_INTERVAL: &str = "sampled at a fixed interval: work in step with it is \
                              misrepresented, which the intervals do not show; record without \
                              --fixed-interval";

/// What to do about stolen time.
pub(crate) const LESS_STEAL: &str = "give the guest more weight, or use a less busy host";

/// The warning that the agent did not take a recording's caller table, and uses another
/// recording's, or none.
pub fn caller_table_warning(uses_held: bool) -> &'static str {
    if uses_held {
        "another recording runs, and the agent has no room for a second caller table: it uses its \
         own; give it a larger caller-table block"
    } else {
        "another recording runs, so the agent takes no caller table and guesses callers of leaf \
         functions; start the first one with --image"
    }
}

/// What stolen time does to a profile.
pub(crate) const STILL_CORRECT: &str = "shares stay correct";

/// How far another recording may differ, if by more than the intervals of this one.
/// `None` for a function that is not shown.
pub fn about_long_run(
    table: &FunctionTable,
    is_shown: impl Fn(&FunctionRow) -> bool,
) -> Option<String> {
    let LongRun { row, of, share } = table.long_run?;
    if !is_shown(&table.rows[row]) {
        return None;
    }
    Some(format!(
        "another recording may differ by more: in the long run `{}`{} has {} %",
        table.rows[row].text,
        match of {
            Of::Own => " itself",
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
                "no allocations: the guest allocated less than what is sampled, or does not \
                 report it to the agent"
                    .to_owned()
            }
        };
        // It says more than the others.
        all.insert(0, none);
        return;
    }
    all.extend(Unplaced::of(report.symbolized.profile()).as_ref().map(about_unplaced));
}

fn about_unplaced(unplaced: &Unplaced) -> String {
    let samples = match unplaced.count() {
        1 => "1 sample".to_owned(),
        count => format!("{} samples", grouped(count)),
    };
    format!(
        "intervals include the worst case of {samples} without a known function ({})",
        unplaced.kinds()
    )
}

pub(crate) fn notable(part: u64, whole: u64) -> bool {
    part != 0 && part as f64 >= whole as f64 * NOTABLE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;
    use std::str::FromStr as _;

    use super::*;
    use crate::report::broken::BrokenIn;
    use unikprof_profile::profile::{BuildId, FromRing};
    use unikprof_profile::symbols::SymbolWarning;

    fn of_mode(mode: Mode) -> RecordingInfo {
        RecordingInfo { mode, ..RecordingInfo::default() }
    }

    fn warnings(counters: Counters) -> Vec<String> {
        let mut all = Vec::new();
        from_counters(&counters, &of_mode(Mode::Cpu), &mut all);
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
        assert!(all[1].ends_with(LESS_LOCKED), "{}", all[1]);
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
        from_counters(&counters, &of_mode(Mode::Wall), &mut all);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].contains("running time corresponds to 1,710 samples, but 1,000 arrived"));
        assert!(all[1].contains("blocked time corresponds to 8,300 samples, but 9,000 arrived"));
        assert_eq!(warnings(Counters { missing_blocked: None, ..counters }), [""; 0]);
    }

    /// Guards a fact or an advice that is cut on a terminal of 80 columns.
    #[test]
    fn each_warning_is_whole_in_two_lines() {
        let counters = Counters {
            ticks: 123_456,
            recorded: 12_345,
            aged: 12_345,
            overflow: 12_345,
            lost: 12_345,
            masked: 12_345,
            late: 1_234,
            by_frame_pointer: 12_345,
            blocked: 1,
            blocked_aged: 1_234,
            blocked_overflow: 1_234,
            missing: Some(0),
            missing_blocked: Some(-123_456),
            ..Counters::default()
        };
        let mut all = Vec::new();
        from_counters(&counters, &of_mode(Mode::Wall), &mut all);
        assert_eq!(all.len(), 8, "{all:#?}");
        all.push(about_stolen(0.371));
        let costs = Costs { sampling: 0.123, server: 0.123 };
        all.push(format!("{}; {}", costs.words(), costs.advice(&of_mode(Mode::Cpu))));
        all.push(FIXED_INTERVAL.into());
        let late = [("guest::arch::interrupts::enable_and_halt".to_owned(), 30)];
        all.push(stack_warnings::about_late(&counters, 50_000, &late));
        all.push(stack_warnings::about_late(&counters, 50_000, &[]));
        let broken = |image: Option<&str>, samples| BrokenIn {
            image: image.map(str::to_owned),
            functions: vec!["_int_malloc".into()],
            samples,
        };
        let broken = [broken(Some("libcrypto.so.3"), 20), broken(None, 3)];
        all.push(stack_warnings::about_broken("16.9 % of the samples", &broken).to_string());
        all.push(stack_warnings::about_broken("16.9 % of the samples", &broken[1..]).to_string());
        all.push(stack_warnings::about_truncated("16.9 % of the samples", 1024).to_string());
        for has_table in [false, true] {
            let told = stack_warnings::about_callers(&counters, has_table);
            all.extend(told.map(|told| told.to_string()));
        }
        all.extend(symbol_warnings());
        all.extend([true, false].map(|held| caller_table_warning(held).into()));
        all.extend(Unplaced::among([&counters], Mode::Cpu, 1).as_ref().map(about_unplaced));
        assert_eq!(all.len(), 8 + 3 + 7 + 12 + 2 + 1, "{all:#?}");
        for warning in &all {
            let shown = in_two_lines(warning, 80);
            assert!(!shown.contains(" …"), "{shown}");
            let words = |text: &str| text.split(' ').count();
            assert_eq!(words(&shown), words(warning), "{shown}");
        }
        let long = format!("{}; use a lower rate", "word ".repeat(40));
        let shown = in_two_lines(&long, 80);
        assert!(shown.ends_with("word …; use a lower rate"), "{shown}");
    }

    fn symbol_warnings() -> Vec<String> {
        let path = || PathBuf::from("/var/lib/guests/images/production/guest-image.elf");
        let build_id = || BuildId::from_str(&"ab".repeat(20)).unwrap();
        let all = [
            SymbolWarning::NoImage {
                mapping: path().display().to_string(),
                build_id: Some(build_id()),
                addresses: 123_456,
            },
            SymbolWarning::NoImage {
                mapping: "linux-vdso.so.1".into(),
                build_id: Some(build_id()),
                addresses: 123_456,
            },
            SymbolWarning::LocalFileDiffers {
                path: path(),
                expected: build_id(),
                found: Some(build_id()),
            },
            SymbolWarning::Forced { path: path(), expected: build_id(), found: Some(build_id()) },
            SymbolWarning::NotVerified { path: path() },
            SymbolWarning::NotUsed { path: path() },
            SymbolWarning::Changed { path: path() },
            SymbolWarning::NoDebugInfo { path: path() },
            SymbolWarning::Stripped { path: path() },
            SymbolWarning::DebugFileMissing { path: path(), missing: path() },
            SymbolWarning::ServersNotAsked,
            SymbolWarning::DebugFileDiffers { debug_file: path(), image: path() },
        ];
        all.iter().map(ToString::to_string).collect()
    }

    /// Guards `the timer did not keep up` beside an excerpt, the running time of whose ends is
    /// interpolated between seconds.
    #[test]
    fn a_part_from_the_rings_is_not_called_undersampled() {
        let counters =
            Counters { ticks: 1_000, recorded: 1_000, missing: Some(500), ..Counters::default() };
        let told = |ring| {
            let mut all = Vec::new();
            from_counters(&counters, &RecordingInfo { ring, ..of_mode(Mode::Cpu) }, &mut all);
            all.len()
        };
        assert_eq!((told(None), told(Some(FromRing::default()))), (1, 0));
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
