//! The seconds of a recording, one line each: rate, stolen and blocked time, the top function.

use std::collections::HashMap;
use std::io::{self, Write};

use jiff::Timestamp;

use super::units::percent;
use super::{Report, TimelineView, shorten};
use crate::printable::Printable;
use crate::symbols::FunctionId;
use crate::timeline::{Slice, WallClock, sparkline, step_ns};

/// The most lines where nobody says how long a slice is.
const LINES: u64 = 120;

/// The column in which the names of the functions begin.
const NAMES_BEGIN: usize = 62;
const LEAST_NAME: usize = 24;

/// So much that the lines do not tell of is worth a word.
const TOLD_FROM_NS: u64 = 1_000_000_000;

/// The columns of a line over time.
const OVERVIEW: usize = 100;

/// A slice and what was on top of its stacks most often.
pub(super) struct Second {
    pub(super) slice: Slice,
    /// The function, and how many of the slice's samples it has.
    pub(super) top: Option<(FunctionId, u64)>,
}

impl Second {
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
    let slices = view.timeline.slices(&view.of, window, step).into_iter();
    let second = |slice: Slice| {
        let mut by_function: HashMap<FunctionId, u64> = HashMap::new();
        for (node, count) in &slice.stacks {
            let symbols = profile.stack(*node).next().map(|f| symbolized.frame(f));
            if let Some(symbol) = symbols.and_then(<[_]>::first) {
                *by_function.entry(symbol.function).or_default() += count;
            }
        }
        let top = by_function.into_iter();
        Second {
            // Of equals the first, so that equal files make equal reports.
            top: top.max_by_key(|(function, count)| (*count, std::cmp::Reverse(*function))),
            slice,
        }
    };
    slices.map(second).collect()
}

pub(super) fn write(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let seconds = of(report, view);
    if seconds.is_empty() {
        return writeln!(out, "\nno time of this recording is in the rings");
    }
    let rate = |second: &Second| second.slice.is_held.then(|| second.slice.rate_hz());
    let highest = |values: &[Option<f64>]| values.iter().flatten().copied().fold(0.0, f64::max);
    writeln!(out)?;
    let rates: Vec<_> = seconds.iter().map(rate).collect();
    let line = sparkline(&rates, OVERVIEW);
    writeln!(
        out,
        "rate     {line}  at most {:.0} samples/s",
        highest(&rates)
    )?;
    let shares: [(&str, Vec<Option<f64>>); 2] = [
        ("stolen", seconds.iter().map(Second::stolen).collect()),
        ("blocked", seconds.iter().map(Second::blocked).collect()),
    ];
    for (name, values) in shares.iter().filter(|(_, v)| v.iter().any(Option::is_some)) {
        let line = sparkline(values, OVERVIEW);
        writeln!(
            out,
            "{name:<7}  {line}  at most {}",
            percent(highest(values))
        )?;
    }
    writeln!(
        out,
        "\n     since  clock (UTC)      rate      stolen     blocked     share  top function"
    )?;
    let clock = view.timeline.wall_clock();
    for second in &seconds {
        write_line(report, view, &clock, second, out)?;
    }
    if seconds.iter().any(|second| !second.slice.is_held) {
        writeln!(
            out,
            "evicted: the ring no longer held all of it when it was read"
        )?;
    }
    let shown = view.timeline.bounded(&view.of, view.window);
    let wanted = view.window.and(view.of.window);
    if shown.from_ns.saturating_sub(wanted.from_ns) >= TOLD_FROM_NS {
        writeln!(
            out,
            "before {:.1} s: in the counts alone; the file has no more of the rings (--max-age, --max-size, the rings' \
             own size)",
            shown.from_ns.saturating_sub(view.of.window.from_ns) as f64 / 1e9
        )?;
    }
    Ok(())
}

fn write_line(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    clock: &WallClock,
    second: &Second,
    out: &mut impl Write,
) -> io::Result<()> {
    let slice = &second.slice;
    let from_ns = slice.window.from_ns;
    let since = from_ns.saturating_sub(view.of.window.from_ns) as f64 / 1e9;
    let time = clock.unix_ns(from_ns).and_then(|unix_ns| {
        let time = Timestamp::from_nanosecond(unix_ns.into()).ok()?;
        Some(time.strftime("%H:%M:%S").to_string())
    });
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let rate = match slice.is_held {
        true => format!("{:.0}/s", slice.rate_hz()),
        false => "evicted".to_owned(),
    };
    write!(
        out,
        "{since:>8.1} s  {:<11}  {rate:>8}  {:>10}  {:>10}",
        time.unwrap_or_default(),
        share(second.stolen()),
        share(second.blocked()),
    )?;
    let Some((function, count)) = second.top else {
        return writeln!(out, "  {:>8}", "-");
    };
    let part = count as f64 / slice.recorded.max(1) as f64;
    let name = Printable(&report.symbolized.function(function).name).to_string();
    let columns = report.options.columns;
    let name = match columns {
        Some(all) => shorten::name(&name, all.saturating_sub(NAMES_BEGIN).max(LEAST_NAME)),
        None => name.as_str().into(),
    };
    writeln!(out, "  {:>8}  {name}", percent(part))
}
