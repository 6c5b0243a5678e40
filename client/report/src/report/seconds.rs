//! The seconds of a recording, one line each: rate, stolen and blocked time, the top function.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use jiff::Timestamp;

use super::labels::{Label, LabelId};
use super::text::label_name;
use super::units::{duration, percent};
use super::{DEFAULT_COLUMNS, Report, TimelineView};
use unikprof_profile::profile::Unit;
use unikprof_profile::timeline::{Slice, WallClock, sparkline, step_ns};

/// The maximum number of lines if no slice length is given.
pub(super) const LINES: u64 = 120;

/// So many columns behind the time since the start the names of the functions begin.
const NAMES_BEHIND: usize = 54;
const LEAST_NAME: usize = 16;

/// So much that the lines do not tell of is worth a word.
pub(super) const TOLD_FROM_NS: u64 = 1_000_000_000;

/// The columns of a line over time.
const OVERVIEW: usize = 100;

/// A slice, and what the report shows of it.
pub(super) struct Second {
    pub(super) slice: Slice,
    /// What its shown stacks hold, in the mode's unit.
    pub(super) shown: u64,
    /// What is on top of the shown stacks most often, and what these hold.
    top: Option<(LabelId, u64)>,
}

impl Second {
    /// What all its stacks hold: what shares are of.
    pub(super) fn recorded(&self) -> u64 {
        self.slice.counters.counted()
    }

    /// The function, or the line of one, with the most of its own, and its share.
    pub(super) fn top<'r>(&self, report: &'r Report<'_>) -> Option<(&'r Label, f64)> {
        let (label, count) = self.top?;
        let share = count as f64 / self.recorded().max(1) as f64;
        Some((&report.labels.all()[label as usize], share))
    }

    /// Samples a second of the time of which it is known what was counted, or how long was waited,
    /// in ns; `None` if no time is known.
    fn amount(&self, unit: Unit) -> Option<f64> {
        let known_ns = self.slice.window.length_ns().max(1) as f64 * self.slice.coverage;
        (self.slice.coverage > 0.0).then(|| match unit {
            Unit::Samples => self.shown as f64 * 1e9 / known_ns,
            Unit::Nanoseconds | Unit::Bytes | Unit::Objects => self.shown as f64,
        })
    }

    pub(super) fn stolen(&self) -> Option<f64> {
        self.slice.share_of_time(|times| times.runnable_ns)
    }

    pub(super) fn blocked(&self) -> Option<f64> {
        self.slice.share_of_time(|times| times.blocked_ns)
    }
}

/// The slices of a view.
pub(super) fn of(report: &Report<'_>, view: &TimelineView<'_>) -> Vec<Second> {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let window = view.timeline.bounded(&view.of, view.window);
    let step = step_ns(
        window,
        view.step_ns,
        match view.step_ns {
            Some(_) => u64::MAX,
            None => LINES,
        },
    );
    let info = profile.recording();
    let timeline = view.timeline;
    let slices = timeline.slices(&view.of, window, info.inside(), step);
    let second = |slice: Slice| {
        let mut shown = 0_u64;
        let mut by_label: HashMap<LabelId, u64> = HashMap::new();
        let stacks = slice.stacks.iter();
        for (node, count) in stacks.filter(|(node, _)| report.weights.keeps(*node)) {
            shown = shown.saturating_add(*count);
            let leaf = profile.stack(*node).next();
            if let Some(label) = leaf.and_then(|frame| report.labels.of_frame(frame).first()) {
                let sum = by_label.entry(*label).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        let top = by_label.into_iter();
        Second {
            shown,
            // Of equals the first, so that equal files make equal reports.
            top: top.max_by_key(|(label, count)| (*count, Reverse(*label))),
            slice,
        }
    };
    slices.into_iter().map(second).collect()
}

/// An amount of a second in words, as its column has it.
fn amount(amount: f64, unit: Unit) -> String {
    match unit {
        Unit::Samples => format!("{amount:.0}/s"),
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => duration(amount as u64),
    }
}

pub(super) fn write(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let seconds = of(report, view);
    if seconds.is_empty() {
        return writeln!(out, "the rings contain no samples of this recording");
    }
    let unit = report.symbolized.profile().recording().unit();
    let highest = |values: &[Option<f64>]| values.iter().flatten().copied().fold(0.0, f64::max);
    let amounts: Vec<_> = seconds.iter().map(|second| second.amount(unit)).collect();
    let columns = report.options.columns.unwrap_or(DEFAULT_COLUMNS);
    // Behind it there is the highest value.
    let overview = columns.saturating_sub(42).clamp(1, OVERVIEW);
    let line = sparkline(&amounts, overview);
    match unit {
        Unit::Samples => writeln!(out, "rate     {line}  max {:.0} samples/s", highest(&amounts)),
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => {
            writeln!(out, "waiting  {line}  max {}", amount(highest(&amounts), unit))
        }
    }?;
    let shares: [(&str, Vec<Option<f64>>); 2] = [
        ("stolen", seconds.iter().map(Second::stolen).collect()),
        ("blocked", seconds.iter().map(Second::blocked).collect()),
    ];
    for (name, values) in shares.iter().filter(|(_, v)| v.iter().any(Option::is_some)) {
        let line = sparkline(values, overview);
        writeln!(out, "{name:<7}  {line}  max {} of all time", percent(highest(values)))?;
    }
    let amount_heading = match unit {
        Unit::Samples => "rate",
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => "waiting",
    };
    let digits = digits(view.step_ns.unwrap_or(0));
    let since_width = 6 + digits;
    writeln!(
        out,
        "\n{:>width$}  clock (UTC) {amount_heading:>8}   stolen  blocked    share  top function",
        "since",
        width = since_width + 2
    )?;
    let clock = view.timeline.wall_clock();
    for second in &seconds {
        let from_ns = second.slice.window.from_ns;
        let since = from_ns.saturating_sub(view.of.window.from_ns) as f64 / 1e9;
        write!(out, "{since:>since_width$.digits$} s  ")?;
        write_line(report, &clock, second, since_width + NAMES_BEHIND, out)?;
    }
    if report.symbolized.profile().recording().inside().is_some() {
        writeln!(
            out,
            "stolen and blocked time are unknown: they are recorded per vCPU, not per span"
        )?;
    }
    let is_empty = |second: &&Second| second.slice.coverage <= 0.0;
    let (empty, others): (Vec<&Second>, Vec<&Second>) = seconds.iter().partition(is_empty);
    if empty.iter().any(|second| !second.slice.is_covered) {
        writeln!(out, "no recording: the files do not cover that time")?;
    }
    if empty.iter().any(|second| second.slice.is_covered) {
        writeln!(out, "evicted: the ring no longer contained that time")?;
    }
    let in_part = others.iter().filter(|second| !second.slice.is_held).count();
    if in_part > 0 {
        writeln!(out, "the rings cover {in_part} of these lines in part: rates are of that part")?;
    }
    let shown = view.timeline.bounded(&view.of, view.window);
    let wanted = view.window.and(view.of.window);
    if shown.from_ns.saturating_sub(wanted.from_ns) >= TOLD_FROM_NS {
        writeln!(
            out,
            "before {:.1} s there are counts only: the file's part of the rings begins there (see \
             --max-age, --max-size \
             and the rings' size)",
            shown.from_ns.saturating_sub(view.of.window.from_ns) as f64 / 1e9
        )?;
    }
    Ok(())
}

/// How many digits of a second tell steps of this length apart, at least one.
fn digits(step_ns: u64) -> usize {
    let is_exact = |digits: &usize| step_ns.is_multiple_of(10_u64.pow(9 - *digits as u32));
    (1..9).find(is_exact).unwrap_or(9)
}

/// What follows the time since the start; the name begins in this column.
fn write_line(
    report: &Report<'_>,
    clock: &WallClock,
    second: &Second,
    name_begins: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let slice = &second.slice;
    let time = clock.unix_ns(slice.window.from_ns).and_then(|unix_ns| {
        let time = Timestamp::from_nanosecond(unix_ns.into()).ok()?;
        Some(time.strftime("%H:%M:%S").to_string())
    });
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let unit = report.symbolized.profile().recording().unit();
    let amount = match second.amount(unit) {
        Some(found) => amount(found, unit),
        None if slice.is_covered => "evicted".to_owned(),
        None => "no recording".to_owned(),
    };
    write!(
        out,
        "{:<8}{amount:>13}  {:>7}  {:>7}",
        time.unwrap_or_default(),
        share(second.stolen()),
        share(second.blocked()),
    )?;
    let Some((label, part)) = second.top(report) else {
        return writeln!(out, "  {:>7}", "-");
    };
    let columns = report.options.columns;
    let columns = columns.map(|all| all.saturating_sub(name_begins).max(LEAST_NAME));
    let name = match columns {
        Some(columns) => label_name(report, label, columns),
        None => label.text.as_str().into(),
    };
    writeln!(out, "  {:>7}  {name}", percent(part))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use unikprof_proto::ring::{Record, kind};

    use super::*;
    use crate::report::ReportOptions;
    use crate::report::golden_tests::{PARSE, profile, symbolized};
    use unikprof_profile::profile::Frame;
    use unikprof_profile::timeline::{RecordingSpan, Ring, Timeline, Window};

    /// Guards steps that are rounded to the same time.
    #[test]
    fn steps_are_told_exactly() {
        let of = |step_ms: u64| digits(step_ms * 1_000_000);
        assert_eq!([0, 1, 20, 250, 500, 1_000, 60_000].map(of), [1, 3, 2, 2, 1, 1, 1]);
        assert_eq!(digits(1), 9);
    }

    /// A second with one sample, in a function that is inlined: what is on top has the name that
    /// tables give it.
    #[test]
    fn the_top_function_is_named_as_in_tables() {
        let profile = profile();
        let leaf = |node| profile.stack(node).next().map(|frame| profile.frame(frame));
        let mut nodes = profile.samples().iter().map(|sample| sample.node);
        let node = nodes.find(|node| leaf(*node) == Some(Frame::leaf(PARSE))).unwrap();
        let ring = Ring {
            records: vec![Record { kind: kind::SAMPLE, at_ns: 5, first: 1, second: 1, third: 0 }],
            stacks: vec![(1, node)],
            read_at_ns: 1_000_000_000,
            ..Ring::default()
        };
        let timeline = Timeline::new(vec![ring], BTreeMap::new(), 0);
        let of = RecordingSpan { recording: Some(1), ring_bit: 0, window: Window::ALL };
        let view = TimelineView {
            timeline: &timeline,
            of,
            window: Window::ALL,
            seconds: true,
            step_ns: None,
        };
        let symbolized = symbolized(&profile);
        let top = |options| {
            let report = Report::new(&symbolized, options);
            let table = report.functions();
            let seconds = super::of(&report, &view);
            let (label, share) = seconds[0].top(&report).unwrap();
            assert_eq!(share.to_bits(), 1.0_f64.to_bits());
            assert!(table.rows.iter().any(|row| row.text == label.text));
            label.text.clone()
        };
        let options = ReportOptions::default();
        assert_eq!(top(options.clone()), "parse::<[u8; 4]>");
        let lines = ReportOptions { lines: true, ..options.clone() };
        assert_eq!(top(lines), "parse::<[u8; 4]> src/parse.rs:7");
        let no_inlines = ReportOptions { no_inlines: true, ..options };
        assert_eq!(top(no_inlines), "mycrate::packet::next");
    }
}
