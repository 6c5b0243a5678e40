//! The guest's own events for people: spans as a table, counters and marks.

use std::io::{self, Write};

use super::seconds::TOLD_FROM_NS;
use super::shorten;
use super::units::{duration, grouped};
use unikprof_profile::printable::Printable;
use unikprof_profile::timeline::{CounterSeries, SpanTable, Timeline, Window, sparkline};

/// The most columns of a counter's line over time.
const LINE: usize = 40;

/// The most and the fewest columns that a name gets.
const NAME: usize = 48;
const LEAST_NAME: usize = 16;

/// The most names listed of each kind: a guest has at most 256.
const MOST: usize = 256;

/// Writes what the guest said within a window, and which part of the time asked for the rings do not
/// cover; nothing where it said nothing.
pub(super) fn write(
    timeline: &Timeline,
    window: Window,
    asked: Window,
    began_ns: u64,
    columns: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let spans = timeline.spans(window);
    let counters = timeline.counters(window);
    let marks = timeline.marks(window);
    let has_any = !spans.is_empty() || !counters.is_empty() || !marks.is_empty();
    write_spans(&spans, columns, out)?;
    let extent = timeline.extent().map_or(window, |extent| extent.and(window));
    write_counters(&counters, extent, columns, out)?;
    if !marks.is_empty() {
        writeln!(out, "\nmarks of the guest\n     count  name")?;
    }
    for (name, count) in marks.iter().take(MOST) {
        writeln!(out, "{:>10}  {}", grouped(*count), shown(name, NAME))?;
    }
    if has_any && let Some(lacking) = lacking(timeline, window, asked, began_ns) {
        writeln!(
            out,
            "\nspans, counters and marks are of the time that the rings cover: {lacking}"
        )?;
    }
    if timeline.refused_names() > 0 {
        writeln!(
            out,
            "\nthe agent rejected {} event names: empty, too long, or too many",
            grouped(timeline.refused_names())
        )?;
    }
    Ok(())
}

/// What of the time asked for the rings do not cover, in words; `None` if they cover all of it.
fn lacking(timeline: &Timeline, window: Window, asked: Window, began_ns: u64) -> Option<String> {
    let covered = |window| timeline.rings().iter().map(move |ring| ring.covered(window));
    let gaps: usize = covered(window).map(|parts| parts.len().saturating_sub(1)).sum();
    let late_ns = window.from_ns.saturating_sub(asked.from_ns);
    let from = format!(
        "from {:.1} s of the recording on",
        window.from_ns.saturating_sub(began_ns) as f64 / 1e9
    );
    match (late_ns >= TOLD_FROM_NS, gaps) {
        (false, 0) => None,
        (true, 0) => Some(from),
        (false, gaps) => Some(format!("without {}", counted(gaps))),
        (true, gaps) => Some(format!("{from}, without {}", counted(gaps))),
    }
}

fn counted(gaps: usize) -> String {
    if gaps == 1 { "1 gap".to_owned() } else { format!("{gaps} gaps") }
}

fn write_spans(tables: &[SpanTable], columns: usize, out: &mut impl Write) -> io::Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nspans of the guest\n     count       total         p50         p99         max  name"
    )?;
    for table in tables.iter().take(MOST) {
        let times = &table.times;
        let length = |ns| match times.count() {
            0 => "-".to_owned(),
            _ => duration(ns),
        };
        write!(
            out,
            "{:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {}",
            grouped(times.count()),
            length(times.total_ns()),
            length(times.percentile(50)),
            length(times.percentile(99)),
            length(times.max_ns()),
            shown(&table.name, columns.saturating_sub(60))
        )?;
        let notes = [
            (table.unfinished, "not ended"),
            (table.cut, "began earlier"),
            (table.asynchronous, "asynchronous"),
            (table.moved, "ended on another vCPU"),
            (table.overlapped, "overlapped others"),
        ];
        let notes = notes.iter().filter(|(count, _)| *count > 0);
        let notes: Vec<String> =
            notes.map(|(count, what)| format!("{} {what}", grouped(*count))).collect();
        if notes.is_empty() {
            writeln!(out)?;
        } else {
            writeln!(out, " ({})", notes.join(", "))?;
        }
    }
    Ok(())
}

fn write_counters(
    counters: &[CounterSeries],
    window: Window,
    columns: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    if counters.is_empty() {
        return Ok(());
    }
    let shown_ones = || counters.iter().take(MOST);
    let values = |it: &CounterSeries| [it.min(), it.max(), it.last()].map(grouped);
    let longest = shown_ones().flat_map(values).map(|it| it.len()).max();
    let width = longest.unwrap_or(0).max(10);
    let left = columns.saturating_sub(3 * (width + 2));
    let line = left.saturating_sub(NAME / 2).clamp(9, LINE);
    writeln!(
        out,
        "\ncounters of the guest\n{:>width$}  {:>width$}  {:>width$}  {:<line$}  name",
        "min", "max", "last", "over time"
    )?;
    for counter in shown_ones() {
        let [min, max, last] = values(counter);
        writeln!(
            out,
            "{min:>width$}  {max:>width$}  {last:>width$}  {:<line$}  {}",
            sparkline(&counter.heights(window, line), line),
            shown(&counter.name, left.saturating_sub(line + 2))
        )?;
    }
    Ok(())
}

/// A name in so many columns, or in those that it gets.
fn shown(name: &str, columns: usize) -> String {
    let columns = columns.clamp(LEAST_NAME, NAME);
    shorten::name(&Printable(name).to_string(), columns).into_owned()
}
