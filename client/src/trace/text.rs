//! A trace as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use unikprof_proto::message::bucket_floor;

use super::calls::End;
use super::data::last_of;
use super::table::{self, Table};
use super::tree::{Branch, Short};
use super::view::{Row, TraceView, by_reason};
use crate::printable::Printable;
use crate::report::{DEFAULT_COLUMNS, shorten};
use crate::timeline::sparkline;
use crate::units::{duration, grouped, percent};

/// The columns of calls over time in the table.
const SPARKLINE: usize = 20;

/// The height of the plot of a function's calls over time.
const PLOT_HEIGHT: u64 = 8;

/// Writes the header, the table, what was asked for in detail, and the tree.
pub(crate) fn write(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let rows = write_summary(view, out)?;
    for function in view.detailed() {
        write_details(view, function, out)?;
    }
    if view.options.slowest > 0 {
        writeln!(out, "\nThe slowest calls:")?;
        let slowest = view.slowest();
        write_tree(view, &slowest, Short::default(), out)?;
    }
    if view.calls.is_some() && view.options.slowest == 0 && !rows.is_empty() {
        let (trees, short) = view.trees();
        writeln!(out)?;
        write_tree(view, &trees, short, out)?;
    }
    Ok(())
}

/// Writes the header and the table; returns its rows.
pub(super) fn write_summary(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<Vec<Row>> {
    write_header(view, out)?;
    let rows = view.rows();
    write_table(view, &rows, out)?;
    Ok(rows)
}

fn write_header(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{}: ", title(view))?;
    for fact in facts(view) {
        writeln!(out, "{fact}")?;
    }
    for warning in view.warnings() {
        writeln!(out, "warning: {warning}")?;
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
            "calls over time and trees have only the calls that took at least {}, and those inside \
             them{}",
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
            duration(row.blocked_ns),
            some(row.p50_ns),
            some(row.p99_ns),
            some(row.max_ns),
        ];
        cells.extend(over_time.as_ref().map(|over_time| {
            let counts = over_time[row.function].iter();
            let heights: Vec<Option<f64>> = counts.map(|it| Some(*it as f64)).collect();
            format!("{:<SPARKLINE$}", sparkline(&heights, SPARKLINE))
        }));
        table::Row {
            cells,
            name: view.name(row.function),
            note: marks(view, row),
            ..table::Row::default()
        }
    };
    let mut head = vec!["calls", "total", "self", "blocked", "p50", "p99", "max"];
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

/// A function's callers, the histogram of its durations, and its calls over time.
fn write_details(view: &TraceView<'_>, at: usize, out: &mut dyn Write) -> io::Result<()> {
    let function = &view.trace.functions[at];
    writeln!(out, "\n{}", view.name(at))?;
    for (name, calls) in super::by_caller(&function.callers) {
        let room = view.options.columns.map_or(usize::MAX, |all| all.saturating_sub(23));
        writeln!(out, "{:>11} calls from {}", grouped(calls), shorten::name(&name, room))?;
    }
    write_histogram(&function.histogram, plot_width(view), out)?;
    if let Some(over_time) = view.over_time(plot_width(view)) {
        write_plot(view, &over_time[at], out)?;
    }
    Ok(())
}

fn write_histogram(histogram: &[u64], width: usize, out: &mut dyn Write) -> io::Result<()> {
    // Beside it stand the durations and the calls, which take more than what stands beside a plot.
    let width = width.saturating_sub(22).clamp(10, 50) as u64;
    // A line for each power of two.
    let mut lines: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
    for (bucket, &count) in histogram.iter().enumerate() {
        let (from, to) = (bucket_floor(bucket), last_of(bucket));
        let line = lines.entry(from.max(1).ilog2()).or_insert((from, to, 0));
        line.1 = to;
        line.2 = line.2.saturating_add(count);
    }
    let hit = || lines.iter().filter(|(_, line)| line.2 > 0).map(|(power, _)| *power);
    let (Some(first), Some(last)) = (hit().next(), hit().next_back()) else {
        return Ok(());
    };
    let most = lines.values().map(|line| line.2).max().unwrap_or(1).max(1);
    writeln!(out, "{:>22} {:>11}", "duration", "calls")?;
    for (from, to, count) in lines.range(first..=last).map(|(_, line)| *line) {
        let bar = (u128::from(count) * u128::from(width)).div_ceil(u128::from(most)) as usize;
        let range = format!("{} - {}", duration(from), duration(to));
        writeln!(out, "{range:>22} {:>11} {}", grouped(count), "█".repeat(bar))?;
    }
    Ok(())
}

fn plot_width(view: &TraceView<'_>) -> usize {
    let columns = view.options.columns.unwrap_or(DEFAULT_COLUMNS);
    columns.saturating_sub(14).clamp(20, 200)
}

/// Calls over time as columns of blocks.
fn write_plot(view: &TraceView<'_>, counts: &[u64], out: &mut dyn Write) -> io::Result<()> {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let (from_ns, to_ns) = view.trace.extent();
    let length_ns = to_ns.saturating_sub(from_ns);
    writeln!(
        out,
        "{}, in steps of {}",
        over_time_title(view),
        duration(length_ns / counts.len().max(1) as u64)
    )?;
    for row in (0..PLOT_HEIGHT).rev() {
        let label = match row {
            row if row + 1 == PLOT_HEIGHT => grouped(most),
            0 => "0".into(),
            _ => String::new(),
        };
        let column = |count: &u64| {
            let eighths = (u128::from(*count) * u128::from(PLOT_HEIGHT * 8)).div_ceil(most.into());
            match eighths.saturating_sub(u128::from(row * 8)) {
                0 => ' ',
                part => BLOCKS[(part.min(8) - 1) as usize],
            }
        };
        let line: String = counts.iter().map(column).collect();
        writeln!(out, "{label:>11} │{}", line.trim_end())?;
    }
    writeln!(out, "{:>11} └{}", "", "─".repeat(counts.len()))?;
    let end = duration(length_ns);
    let room = counts.len().saturating_sub(1);
    writeln!(out, "{:>12} 0{end:>room$}", "")
}

fn write_tree(
    view: &TraceView<'_>,
    trees: &[Branch],
    short: Short,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut lines = Lines {
        view,
        began_ns: view.trace.extent().0,
        left: view.options.lines.unwrap_or(usize::MAX),
        dropped: 0,
        rows: Vec::new(),
        has_vcpus: view.calls.iter().any(|calls| calls.all.iter().any(|call| call.vcpu != 0)),
    };
    let holes = view.calls.iter().flat_map(|calls| &calls.holes);
    let mut holes = holes.peekable();
    for tree in trees {
        while let Some(hole) = holes.next_if(|hole| hole.to_ns <= tree.start_ns) {
            let start = duration(hole.from_ns.saturating_sub(lines.began_ns));
            let length = duration(hole.to_ns.saturating_sub(hole.from_ns));
            let note = format!("⋯ records of vCPU {} were lost here ⋯", hole.vcpu);
            lines.line(vec![start, length], 0, String::new(), note);
        }
        lines.branch(tree, 0);
    }
    lines.short(short, 0);
    let dropped = lines.dropped;
    let table = Table {
        head: vec!["start", "duration", "self", "blocked"],
        names: "call",
        rows: lines.rows,
        spare: &[],
    };
    let first = table.write(view.options.columns, out)?;
    if dropped > 0 {
        writeln!(
            out,
            "{:>first$} more lines; --min leaves out short calls, and -o FILE.txt has all",
            grouped(dropped)
        )?;
    }
    Ok(())
}

/// The lines of a tree.
struct Lines<'v> {
    view: &'v TraceView<'v>,
    began_ns: u64,
    /// How many more are shown.
    left: usize,
    dropped: u64,
    rows: Vec<table::Row>,
    has_vcpus: bool,
}

impl Lines<'_> {
    fn line(&mut self, cells: Vec<String>, depth: usize, name: String, note: String) {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.rows.push(table::Row { cells, depth, name, note });
            }
            None => self.dropped += 1,
        }
    }

    fn branch(&mut self, branch: &Branch, depth: usize) {
        let mut note = String::new();
        if branch.times > 1 {
            note = format!(" × {}", grouped(branch.times));
        }
        let ends = branch.ends.iter().map(|(end, count)| match (branch.times, count) {
            (1, _) => end.text().to_owned(),
            _ => format!("{} {}", grouped(*count), end.text()),
        });
        let mut marks: Vec<String> = ends.collect();
        if branch.has_hole && !branch.ends.iter().any(|(end, _)| *end == End::Lost) {
            marks.push("records were lost inside".into());
        }
        if depth == 0 && self.has_vcpus {
            let call = self.view.calls.as_ref().and_then(|calls| calls.all.get(branch.call));
            marks.extend(call.map(|call| format!("vCPU {}", call.vcpu)));
        }
        if !marks.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(note, "  ({})", marks.join(", "));
        }
        let cells = vec![
            duration(branch.start_ns.saturating_sub(self.began_ns)),
            duration(branch.duration_ns),
            duration(branch.self_ns),
            duration(branch.blocked_ns),
        ];
        self.line(cells, depth, self.view.name(branch.function.into()), note);
        for inside in &branch.inside {
            self.branch(inside, depth + 1);
        }
        self.short(branch.short, depth + 1);
    }

    /// What is left out for being short.
    fn short(&mut self, short: Short, depth: usize) {
        if short.calls == 0 {
            return;
        }
        let calls = if short.calls == 1 { "call" } else { "calls" };
        let cells = vec![String::new(), duration(short.duration_ns)];
        let note = format!("… {} shorter {calls}", grouped(short.calls));
        self.line(cells, depth, String::new(), note);
    }
}
