//! The report for people.

use std::borrow::Cow;
use std::io::{self, Write};

use super::analysis::Analysis;
use super::functions::{FunctionRow, FunctionTable, SortBy};
use super::labels::Label;
use super::uncertainty::Unplaced;
use super::units::{amount, amount_with_unit, grouped, percent, share};
use super::{
    DEFAULT_COLUMNS, Report, accounting, events, heap, seconds, shorten, summary, times, warnings,
};
use crate::finding::{paragraph, write_wrapped};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Interval, Unit};
use unikprof_profile::symbols::{FileId, FunctionId, Symbolized};

/// The columns a name gets before figures are left out for it.
pub(super) const NAME: usize = 24;

/// The figures before a name. Where the text is narrow, first the counts are left out, then the
/// intervals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    unit: Unit,
    has_counts: bool,
    pub(super) has_intervals: bool,
}

impl Figures {
    /// Those for so many pairs of a count and its share, which leave as much for the last column.
    pub(super) fn fitting(
        unit: Unit,
        columns: Option<usize>,
        shares: usize,
        last: usize,
    ) -> Figures {
        let is_sampled = unit == Unit::Samples;
        let all = Figures { unit, has_counts: true, has_intervals: is_sampled };
        let choices = [
            all,
            Figures { has_counts: false, ..all },
            Figures { has_counts: false, has_intervals: false, ..all },
        ];
        let fits = |of: &Figures| columns.is_none_or(|all| of.left(all, shares) >= last);
        choices.into_iter().find(fits).unwrap_or(choices[2])
    }

    /// The columns of a count and its share, with the spaces behind them.
    pub(super) fn width(&self) -> usize {
        9 + if self.has_counts { 12 } else { 0 } + if self.has_intervals { 14 } else { 0 }
    }

    /// What is left for a name behind so many shares.
    pub(super) fn left(&self, columns: usize, shares: usize) -> usize {
        columns.saturating_sub(shares * self.width())
    }

    pub(super) fn heading(&self, title: &str) -> String {
        let interval = if self.has_intervals { "      interval  " } else { "  " };
        match self.has_counts {
            true => format!("{title:>10}    share{interval}"),
            false => format!("{title:>7}{interval}"),
        }
    }

    pub(super) fn cells(&self, count: u64, interval: &Interval) -> String {
        let count = match self.has_counts {
            true => format!("{:>10}  ", amount(count, self.unit)),
            false => String::new(),
        };
        let unit = if self.has_intervals { self.unit } else { Unit::Nanoseconds };
        format!("{count}{}  ", share_columns(interval, unit))
    }
}

pub(super) fn write(report: &Report<'_>, accounting: bool, out: &mut impl Write) -> io::Result<()> {
    write_wrapped(report.options.columns, out, |out| write_lines(report, accounting, out))
}

fn write_lines(report: &Report<'_>, accounting: bool, out: &mut impl Write) -> io::Result<()> {
    let profile = report.symbolized.profile();
    let table = report.functions();
    let columns = report.options.columns.unwrap_or(DEFAULT_COLUMNS);
    let mut all = warnings::of(report);
    all.retain(|warning| accounting || Some(warning) != report.told.as_ref());
    writeln!(out, "{}", summary::recorded(profile))?;
    let seconds = report.view.filter(|view| view.seconds);
    if let Some(view) = seconds {
        writeln!(out)?;
        write_shown(report, table, out)?;
        seconds::write(report, &view, out)?;
    } else if let Some(calls) = &report.calls {
        calls.write(report, out)?;
        write_long_run(report, |row| calls.shows(report, row.function), out)?;
        write_shown(report, table, out)?;
    } else if let Some(annotation) = &report.annotation {
        annotation.write(report, out)?;
        write_shown(report, table, out)?;
    } else {
        let analysis = Analysis::of(report);
        if report.is_analyzed {
            all.retain(|warning| !analysis.tells(warning));
            analysis.write(report.options.columns, name_columns(report), out)?;
        } else {
            analysis.write_answer(report, &all, out)?;
        }
        write_functions(report, table, &analysis, out)?;
    }
    if accounting || seconds.is_some() {
        write_events(report, out)?;
    }
    if accounting {
        writeln!(out)?;
        for warning in &all {
            let mut text = String::new();
            paragraph(&mut text, warnings::HEAD, warning, columns);
            out.write_all(text.as_bytes())?;
        }
        return write_accounting(report, out);
    }
    writeln!(out)?;
    warnings::write_first(&all, warnings::ALL, columns, out)?;
    let line = summary::accounting(profile);
    let more = format!("{line} (`report --accounting` shows all)");
    let line = if more.chars().count() <= columns { more } else { line };
    writeln!(out, "{line}")
}

/// Writes the outcome of every tick, how callers were found, and what the profiler cost.
fn write_accounting(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = report.symbolized.profile();
    accounting::write_header(profile.recording(), out)?;
    if profile.heap.is_some() {
        heap::write_accounting(profile, out)?;
        heap::write_arenas(report, out)?;
    } else {
        accounting::write_accounting(profile, report.marked(), out)?;
    }
    times::write(profile, out)
}

fn write_events(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let Some(view) = report.view.as_ref().or(report.beside.as_ref()) else {
        return Ok(());
    };
    let window = view.timeline.bounded(&view.of, view.window);
    let asked = view.window.and(view.of.window);
    let columns = report.options.columns.unwrap_or(DEFAULT_COLUMNS);
    events::write(view.timeline, window, asked, view.of.window.from_ns, columns, out)
}

/// The accounting and the warnings as short lines, for formats that hold comments.
pub(super) fn accounting_lines(report: &Report<'_>) -> Vec<String> {
    let profile = report.symbolized.profile();
    let mut lines = accounting::lines(&profile.counters().told(), profile.recording());
    lines.extend(heap::accounting(profile).into_iter().filter(|line| !line.is_empty()));
    lines.extend(report.warnings().into_iter().map(|warning| format!("warning: {warning}")));
    lines
}

/// The rows of a table in an order. By total, those that nearly all samples share are apart, but for
/// what findings or the filter name.
pub(super) fn in_order<'t>(
    report: &Report<'_>,
    table: &'t FunctionTable,
    analysis: &Analysis,
    sort: SortBy,
) -> (Vec<&'t FunctionRow>, Vec<&'t FunctionRow>) {
    let focus = report.options.focus.as_ref();
    table.in_order(sort, |row| {
        focus.is_some_and(|focus| focus.matches(report.symbolized.function(row.function)))
            || analysis.findings.iter().any(|found| found.functions.contains(&row.text))
    })
}

fn write_functions(
    report: &Report<'_>,
    table: &FunctionTable,
    analysis: &Analysis,
    out: &mut impl Write,
) -> io::Result<()> {
    let options = &report.options;
    let (shared, rows) = in_order(report, table, analysis, options.sort);
    let what = if options.lines { "lines" } else { "functions" };
    let top = match options.top {
        0 => rows.len(),
        top => top.min(rows.len()),
    };
    let unit = table.unit;
    let title = format!(
        "{} of {} {what} by {}, {}{}",
        grouped((shared.len() + top) as u64),
        grouped(table.rows.len() as u64),
        match options.sort {
            SortBy::Own => "self",
            SortBy::Total => "total",
        },
        amount_with_unit(table.recorded, unit),
        match unit {
            Unit::Samples => match Unplaced::of(report.symbolized.profile()) {
                Some(all) => format!("; 95 % intervals, worst case of {}", grouped(all.count())),
                None => "; 95 % intervals".into(),
            },
            Unit::Nanoseconds => " blocked; measured, so there are no intervals".into(),
            Unit::Bytes | Unit::Objects => heap::title(report.symbolized.profile()),
        }
    );
    writeln!(out, "\n{title}")?;
    let is_shown = |one: &FunctionRow| rows[..top].iter().any(|row| row.label == one.label);
    write_long_run(report, is_shown, out)?;
    write_shown(report, table, out)?;
    if top == 0 {
        return Ok(());
    }
    let all = Rows { report, shared: &shared, own: &rows[..top] };
    if report.symbolized.profile().heap.is_some() {
        return heap::write_rows(&all, table, out);
    }
    let figures = Figures::fitting(unit, options.columns, 2, NAME);
    let heading = if options.lines { "line" } else { "function" };
    writeln!(out, "{}{}{heading}", figures.heading("self"), figures.heading("total"))?;
    for (row, name) in all.named(name_columns(report)) {
        let own = figures.cells(row.own, &row.own_share);
        writeln!(out, "{own}{}{name}", figures.cells(row.total, &row.total_share))?;
    }
    Ok(())
}

/// The columns of a name in the table of functions.
pub(super) fn name_columns(report: &Report<'_>) -> Option<usize> {
    let profile = report.symbolized.profile();
    let unit = profile.recording().unit();
    if profile.heap.is_some() {
        return heap::heads(report, unit).1;
    }
    let columns = report.options.columns?;
    Some(Figures::fitting(unit, Some(columns), 2, NAME).left(columns, 2))
}

/// What so many rows that are one are called.
pub fn shared_rows(count: usize) -> String {
    format!("[{count} functions that nearly all samples share]")
}

/// The rows of a table of functions.
#[derive(Clone, Copy)]
pub(super) struct Rows<'r> {
    pub(super) report: &'r Report<'r>,
    /// They are one row, with the figures of the first.
    shared: &'r [&'r FunctionRow],
    own: &'r [&'r FunctionRow],
}

impl<'r> Rows<'r> {
    /// Each row with its name, which has so many columns.
    pub(super) fn named(
        self,
        columns: Option<usize>,
    ) -> impl Iterator<Item = (&'r FunctionRow, Cow<'r, str>)> {
        let shared = self.shared.first().map(|outermost| {
            let name = shared_rows(self.shared.len());
            let name = shorten::name(&name, columns.unwrap_or(usize::MAX)).into_owned();
            (*outermost, name.into())
        });
        let own = self.own.iter().map(move |row| {
            let name = columns.map(|columns| row_name(self.report, row, columns));
            (*row, name.unwrap_or_else(|| (&*row.text).into()))
        });
        shared.into_iter().chain(own)
    }
}

fn write_long_run(
    report: &Report<'_>,
    is_shown: impl Fn(&FunctionRow) -> bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let Some(line) = warnings::about_long_run(report.functions(), is_shown) else {
        return Ok(());
    };
    let columns = report.options.columns.unwrap_or(DEFAULT_COLUMNS);
    let name = name_columns(report).unwrap_or(usize::MAX);
    let fits = |text: &str| text.chars().count() <= columns;
    let mut text = String::new();
    paragraph(&mut text, "", &shorten::as_in_table(&line, name, fits), columns);
    out.write_all(text.as_bytes())
}

/// What the filters leave, if there are any.
fn write_shown(report: &Report<'_>, table: &FunctionTable, out: &mut impl Write) -> io::Result<()> {
    let filters = [("focus", &report.options.focus), ("ignore", &report.options.ignore)];
    let filters: Vec<String> = filters
        .iter()
        .filter_map(|(name, regex)| Some(format!("{name} {:?}", regex.as_ref()?.text())))
        .collect();
    if filters.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "shown: {} of {} ({}), {}; shares are of the total",
        amount(table.shown, table.unit),
        amount_with_unit(table.recorded, table.unit),
        share(table.shown, table.recorded),
        filters.join(", ")
    )
}

/// What a row is called, in at most so many columns as far as its place in the source allows.
fn row_name<'r>(report: &Report<'_>, row: &'r FunctionRow, columns: usize) -> Cow<'r, str> {
    let line = row.line.filter(|_| report.options.lines);
    short_name(report.symbolized, &row.text, row.function, line, columns)
}

/// What a label is called, likewise.
pub(super) fn label_name<'r>(
    report: &Report<'_>,
    label: &'r Label,
    columns: usize,
) -> Cow<'r, str> {
    short_name(report.symbolized, &label.text, label.function, label.line, columns)
}

fn short_name<'r>(
    symbolized: &Symbolized<'_>,
    text: &'r str,
    function: FunctionId,
    line: Option<(FileId, u32)>,
    columns: usize,
) -> Cow<'r, str> {
    match line {
        None => shorten::name(text, columns),
        Some((file, line)) => {
            let file = Printable(symbolized.file(file)).to_string();
            let place = format!(" {}:{line}", shorten::path(&file));
            let left = columns.saturating_sub(place.chars().count());
            let name = Printable(&symbolized.function(function).name).to_string();
            (shorten::name(&name, left).into_owned() + &place).into()
        }
    }
}

/// The ends of a sampled share's interval in percent: 100 % is seen, but not known.
pub fn ends(Interval { low, high, .. }: &Interval, between: &str) -> String {
    format!("{:.1}{between}{:.1}", (low * 100.0).min(99.9), high * 100.0)
}

/// `  42.0 %   41.1 - 43.0` in columns of fixed width; what was measured has no interval.
pub(super) fn share_columns(interval: &Interval, unit: Unit) -> String {
    let share = percent(interval.share);
    match unit {
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => format!("{share:>7}"),
        Unit::Samples => {
            format!("{share:>7}  {:>12}", ends(interval, " - "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards a line that is a column wider than the others.
    #[test]
    fn the_columns_of_a_share_have_one_width() {
        for (hits, samples) in [(0, 9), (5, 10), (6_000, 6_000), (10_000_000, 10_000_000)] {
            let columns = share_columns(&Interval::wilson(hits, samples), Unit::Samples);
            assert_eq!(columns.chars().count(), 21, "{columns}");
        }
    }
}
