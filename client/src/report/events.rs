//! The guest's own events for people: spans as a table, counters and marks.

use std::io::{self, Write};

use super::shorten;
use super::units::{duration, grouped};
use crate::printable::Printable;
use crate::timeline::{CounterSeries, SpanTable, Timeline, Window, sparkline};

/// The columns of a counter's line over time.
const LINE: usize = 40;

/// The columns a name gets.
const NAME: usize = 48;

/// The most names listed of each kind: a guest has at most 256.
const MOST: usize = 256;

/// Writes what the guest said within a window; nothing where it said nothing.
pub(super) fn write(timeline: &Timeline, window: Window, out: &mut impl Write) -> io::Result<()> {
    write_spans(&timeline.spans(window), out)?;
    let extent = timeline.extent().map_or(window, |extent| extent.and(window));
    write_counters(&timeline.counters(window), extent, out)?;
    let marks = timeline.marks(window);
    if !marks.is_empty() {
        writeln!(out, "\nmarks of the guest\n     count  name")?;
    }
    for (name, count) in marks.iter().take(MOST) {
        writeln!(out, "{:>10}  {}", grouped(*count), shown(name))?;
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

fn write_spans(tables: &[SpanTable], out: &mut impl Write) -> io::Result<()> {
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
            shown(&table.name)
        )?;
        let notes = [
            (table.unfinished, "not ended"),
            (table.cut, "began earlier"),
            (table.moved, "ended on another vCPU"),
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
    out: &mut impl Write,
) -> io::Result<()> {
    if counters.is_empty() {
        return Ok(());
    }
    let shown_ones = || counters.iter().take(MOST);
    let values = |it: &CounterSeries| [it.min(), it.max(), it.last()].map(grouped);
    let longest = shown_ones().flat_map(values).map(|it| it.len()).max();
    let width = longest.unwrap_or(0).max(10);
    writeln!(
        out,
        "\ncounters of the guest\n{:>width$}  {:>width$}  {:>width$}  {:<LINE$}  name",
        "min", "max", "last", "over time"
    )?;
    for counter in shown_ones() {
        let [min, max, last] = values(counter);
        writeln!(
            out,
            "{min:>width$}  {max:>width$}  {last:>width$}  {}  {}",
            sparkline(&counter.heights(window, LINE), LINE),
            shown(&counter.name)
        )?;
    }
    Ok(())
}

fn shown(name: &str) -> String {
    shorten::name(&Printable(name).to_string(), NAME).into_owned()
}
