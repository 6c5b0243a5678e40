//! The report for people.

use std::borrow::Cow;
use std::io::{self, Write};

use super::analysis::Analysis;
use super::functions::{FunctionRow, FunctionTable};
use super::interval::Interval;
use super::labels::Label;
use super::units::{amount, amount_with_unit, grouped, percent, share};
use super::{Report, accounting, events, heap, seconds, shorten, times, warnings};
use crate::printable::Printable;
use crate::profile::Unit;
use crate::symbols::{FileId, FunctionId, Symbolized};

/// The column in which the names of a table with own and total samples begin.
pub(super) fn names_begin(unit: Unit) -> usize {
    match unit {
        Unit::Samples => 70,
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => 42,
    }
}

/// The columns a name gets however narrow the text is.
pub(super) const LEAST_NAME: usize = 24;

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = report.symbolized.profile();
    let table = report.functions();
    accounting::write_header(profile.recording(), out)?;
    write_warnings(&warnings::of(report, table), out)?;
    if let Some(view) = report.view.filter(|view| view.seconds) {
        writeln!(out)?;
        write_shown(report, table, out)?;
        seconds::write(report, &view, out)?;
    } else {
        if profile.heap.is_some() {
            heap::write_accounting(profile, out)?;
            heap::write_arenas(report, out)?;
        } else {
            accounting::write_accounting(&profile.counters(), profile.recording(), out)?;
        }
        times::write(profile, out)?;
    }
    if let Some(view) = report.view.as_ref().or(report.beside.as_ref()) {
        let window = view.timeline.bounded(&view.of, view.window);
        let asked = view.window.and(view.of.window);
        events::write(view.timeline, window, asked, view.of.window.from_ns, out)?;
    }
    if report.view.is_some_and(|view| view.seconds) {
        return Ok(());
    }
    if report.is_analyzed {
        return Analysis::of(report).write(report.options.columns, out);
    }
    if let Some(calls) = &report.calls {
        calls.write(report, out)?;
    } else if let Some(annotation) = &report.annotation {
        annotation.write(report, out)?;
    } else {
        return write_functions(report, table, out);
    }
    write_shown(report, table, out)
}

/// The accounting and the warnings as short lines, for formats that hold comments.
pub(super) fn accounting_lines(report: &Report<'_>) -> Vec<String> {
    let profile = report.symbolized.profile();
    let mut lines = accounting::lines(&profile.counters(), profile.recording());
    lines.extend(heap::accounting(profile).into_iter().filter(|line| !line.is_empty()));
    lines.extend(report.warnings().into_iter().map(|warning| format!("warning: {warning}")));
    lines
}

fn write_warnings(warnings: &[String], out: &mut impl Write) -> io::Result<()> {
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
}

fn write_functions(
    report: &Report<'_>,
    table: &FunctionTable,
    out: &mut impl Write,
) -> io::Result<()> {
    let what = if report.options.lines { "lines" } else { "functions" };
    let top = match report.options.top {
        0 => table.rows.len(),
        top => top.min(table.rows.len()),
    };
    let unit = table.unit;
    writeln!(
        out,
        "\n{} of {} {what}, {}{}",
        grouped(top as u64),
        grouped(table.rows.len() as u64),
        amount_with_unit(table.recorded, unit),
        match unit {
            Unit::Samples if table.unplaced != 0 => format!(
                "; 95 % intervals, including the worst-case effect of {} unattributed samples",
                grouped(table.unplaced)
            ),
            Unit::Samples => "; 95 % intervals".into(),
            Unit::Nanoseconds => " blocked; measured, so there are no intervals".into(),
            Unit::Bytes | Unit::Objects => heap::title(report.symbolized.profile()),
        }
    )?;
    write_shown(report, table, out)?;
    if top == 0 {
        return Ok(());
    }
    if report.symbolized.profile().heap.is_some() {
        return heap::write_rows(report, table, &table.rows[..top], out);
    }
    let heading = if report.options.lines { "line" } else { "function" };
    let interval = match unit {
        Unit::Samples => "      interval",
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => "",
    };
    writeln!(out, "\n      self    share{interval}       total    share{interval}  {heading}")?;
    let name_columns = report.options.columns;
    let name_columns =
        name_columns.map(|all| all.saturating_sub(names_begin(unit)).max(LEAST_NAME));
    for row in &table.rows[..top] {
        writeln!(
            out,
            "{:>10}  {}  {:>10}  {}  {}",
            amount(row.own, unit),
            share_columns(&row.own_share, unit),
            amount(row.total, unit),
            share_columns(&row.total_share, unit),
            match name_columns {
                Some(columns) => row_name(report, row, columns),
                None => (&row.text).into(),
            }
        )?;
    }
    Ok(())
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
pub(super) fn row_name<'r>(
    report: &Report<'_>,
    row: &'r FunctionRow,
    columns: usize,
) -> Cow<'r, str> {
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
            (shorten::name(&name, left.max(LEAST_NAME)).into_owned() + &place).into()
        }
    }
}

/// The ends of a sampled share's interval, in at most 12 columns: 100 % is seen, but not known.
pub(crate) fn ends(Interval { low, high, .. }: &Interval) -> String {
    format!("{:.1} - {:.1}", (low * 100.0).min(99.9), high * 100.0)
}

/// `  42.0 %   41.1 - 43.0` in columns of fixed width; what was measured has no interval.
pub(super) fn share_columns(interval: &Interval, unit: Unit) -> String {
    let share = percent(interval.share);
    match unit {
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => format!("{share:>7}"),
        Unit::Samples => {
            format!("{share:>7}  {:>12}", ends(interval))
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
