//! A trace as text.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::table::{self, Table};
use super::view::{Row, TraceView, by_reason};
use crate::finding::write_wrapped;
use crate::report::{shorten, warnings};
use unikprof_profile::printable::Printable;
use unikprof_profile::timeline::sparkline;
use unikprof_profile::trace::{Call, Calls, End};
use unikprof_profile::units::{duration, grouped, percent};

/// The columns of calls over time in the table.
pub(super) const SPARKLINE: usize = 20;

/// Writes the header, the table, the callers of the functions that were asked for, and the slowest
/// calls.
pub(crate) fn write(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_wrapped(view.options.columns, out, |out| write_all(view, out))
}

fn write_all(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_table_of(view, out)?;
    for function in view.detailed() {
        write_callers(view, function, out)?;
    }
    let calls = view.calls.as_ref().map(|calls| (calls, view.slowest(calls)));
    match calls.filter(|(_, slowest)| !slowest.is_empty()) {
        Some((calls, slowest)) => write_slowest(view, calls, &slowest, out),
        None => Ok(()),
    }
}

/// Writes the header and the table.
pub(super) fn write_summary(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_wrapped(view.options.columns, out, |out| write_table_of(view, out))
}

fn write_table_of(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_header(view, out)?;
    write_table(view, &view.rows(), out)
}

fn write_header(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{}: ", title(view))?;
    for fact in facts(view) {
        writeln!(out, "{fact}")?;
    }
    match view.options.columns {
        Some(columns) => warnings::write_first(&view.warnings(), warnings::ALL, columns, out)?,
        None => {
            let mut all = view.warnings().into_iter();
            all.try_for_each(|warning| writeln!(out, "{}{warning}", warnings::HEAD))?;
        }
    }
    write_refused(view, out)
}

/// The functions that are not traced, by reason.
fn write_refused(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    const MOST: usize = 5;
    let (most, room) = match view.options.columns {
        Some(columns) if view.options.top > 0 => (MOST, columns.saturating_sub(2)),
        columns => (usize::MAX, columns.unwrap_or(usize::MAX)),
    };
    for (reason, names) in by_reason(&view.refused()) {
        writeln!(out, "not traced ({reason}):")?;
        for name in names.iter().take(most) {
            writeln!(out, "  {}", shorten::name(name, room))?;
        }
        if names.len() > most {
            writeln!(out, "  and {} more; --top 0 lists all", names.len() - most)?;
        }
    }
    Ok(())
}

/// What was traced, made safe for terminals and files.
pub(super) fn title(view: &TraceView<'_>) -> String {
    format!("trace of {}", Printable(&view.trace.order.patterns))
}

/// What the trace is and what it cost, a line each; the first goes on from the title.
pub(super) fn facts(view: &TraceView<'_>) -> Vec<String> {
    let trace = view.trace;
    let (from_ns, to_ns) = trace.extent();
    let functions = trace.functions.iter();
    let traced = functions.filter(|it| it.refused.is_none()).count();
    let probes = trace.armed.map_or(0, |armed| armed.probes);
    let mut first = format!(
        "{}, {} {}, {} probes",
        duration(to_ns.saturating_sub(from_ns)),
        grouped(traced as u64),
        if traced == 1 { "function" } else { "functions" },
        grouped(probes)
    );
    if let Some(state) = &trace.state {
        // Writing to a string does not fail.
        let _ = write!(
            first,
            ", {} breakpoints, cost {} of a CPU",
            grouped(state.traps),
            percent(f64::from(state.cost_permille) / 1000.0)
        );
    }
    let mut facts = vec![first];
    if trace.order.slow_ns > 0 {
        facts.push(format!(
            "single calls are those that took at least {}, and those inside them{}",
            duration(trace.order.slow_ns),
            if view.is_part() { "" } else { "; the table counts all" }
        ));
    }
    if let Some(ready) = trace.ready.filter(|ready| ready.probe_cycles > 0) {
        facts.push(format!(
            "a breakpoint takes about {} cycles: durations contain one of their own, and two for \
             each traced call inside",
            grouped(ready.probe_cycles)
        ));
    }
    facts
}

/// The title of calls over time, which say whether these are all calls.
pub(super) fn over_time_title(view: &TraceView<'_>) -> &'static str {
    if view.trace.order.slow_ns > 0 { "kept calls over time" } else { "calls over time" }
}

fn write_table(view: &TraceView<'_>, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    if rows.is_empty() {
        return out.write_all(if view.is_part() {
            b"Nothing was called inside calls of --in that began during the trace; one that was \
              under way before does not count.\n"
        } else {
            b"No traced function was called.\n"
        });
    }
    let over_time = view.over_time(SPARKLINE);
    let shown = match view.options.top {
        0 => rows.len(),
        top => top.min(rows.len()),
    };
    let some = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
    let line = |row: &Row| {
        let mut cells = vec![
            grouped(row.calls),
            duration(row.total_ns),
            duration(row.self_ns),
            duration(row.waited_ns),
            some(row.p50_ns),
            some(row.p99_ns),
            some(row.max_ns),
        ];
        cells.extend(over_time.as_ref().map(|over_time| {
            let counts = over_time[row.function].iter();
            let heights: Vec<Option<f64>> = counts.map(|it| Some(*it as f64)).collect();
            format!("{:<SPARKLINE$}", sparkline(&heights, SPARKLINE))
        }));
        table::Row { cells, name: view.name(row.function), note: marks(view, row) }
    };
    let mut head = vec!["calls", "total", "self", "waited", "p50", "p99", "max"];
    head.extend(over_time.as_ref().map(|_| over_time_title(view)));
    let table = Table {
        head,
        names: "function",
        rows: rows[..shown].iter().map(line).collect(),
        spare: &[7],
    };
    let first = table.write(view.options.columns, out)?;
    if shown < rows.len() {
        writeln!(
            out,
            "{:>first$} more functions; --top 0 lists all",
            grouped((rows.len() - shown) as u64)
        )?;
    }
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    let mut text = format!(
        "{:>first$} calls = {} returned",
        grouped(sum(|it| it.calls)),
        grouped(sum(|it| it.returned))
    );
    for (count, what) in [
        (sum(|it| it.unwound), "unwound"),
        (sum(|it| it.replaced), "replaced"),
        (sum(|it| it.open), "still open"),
        (sum(|it| it.lost), "with a lost end"),
    ] {
        if count > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, " + {} {what}", grouped(count));
        }
    }
    writeln!(out, "{text}")?;
    let orphans = sum(|it| it.orphans);
    if orphans > 0 {
        writeln!(
            out,
            "{:>first$} returns are of calls that began before the trace, or were nested too \
             deeply",
            grouped(orphans)
        )?;
    }
    Ok(())
}

/// What is special about a function's calls.
fn marks(view: &TraceView<'_>, row: &Row) -> String {
    let marks = [
        (row.unwound, "unwound"),
        (row.replaced, "replaced"),
        (row.open, "still open"),
        (row.lost, "with a lost end"),
    ];
    let marks = marks.iter().filter(|(count, _)| *count > 0);
    let mut marks: Vec<String> =
        marks.map(|(count, what)| format!("{} {what}", grouped(*count))).collect();
    if view.trace.functions[row.function].is_removed() {
        marks.push("removed".into());
    }
    if marks.is_empty() {
        return String::new();
    }
    format!("  ({})", marks.join(", "))
}

fn write_callers(view: &TraceView<'_>, at: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n{}", view.name(at))?;
    for (name, calls) in super::by_caller(&view.trace.functions[at].callers) {
        let room = view.options.columns.map_or(usize::MAX, |all| all.saturating_sub(23));
        writeln!(out, "{:>11} calls from {}", grouped(calls), shorten::name(&name, room))?;
    }
    Ok(())
}

fn write_slowest(
    view: &TraceView<'_>,
    calls: &Calls,
    slowest: &[usize],
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "\nThe slowest calls:")?;
    let (began_ns, _) = view.trace.extent();
    let has_vcpus = calls.all.iter().any(|call| call.vcpu != 0);
    let inside_ns = view.inside_ns(calls);
    let waited_ns = TraceView::waited_ns(calls);
    let line = |at: &usize| {
        let call = &calls.all[*at];
        table::Row {
            cells: vec![
                duration(call.start_ns.saturating_sub(began_ns)),
                duration(call.duration_ns()),
                duration(call.duration_ns().saturating_sub(inside_ns[*at])),
                duration(waited_ns[*at]),
            ],
            name: view.name(call.function.into()),
            note: call_marks(call, has_vcpus),
        }
    };
    let table = Table {
        head: vec!["start", "duration", "self", "waited"],
        names: "call",
        rows: slowest.iter().map(line).collect(),
        spare: &[],
    };
    table.write(view.options.columns, out).map(|_| ())
}

/// What is special about a call.
fn call_marks(call: &Call, has_vcpus: bool) -> String {
    let mut marks = Vec::new();
    if call.end != End::Returned {
        marks.push(call.end.text().to_owned());
    }
    if call.has_hole && call.end != End::Lost {
        marks.push("records were lost inside".into());
    }
    if has_vcpus {
        marks.push(format!("vCPU {}", call.vcpu));
    }
    if marks.is_empty() { String::new() } else { format!("  ({})", marks.join(", ")) }
}
