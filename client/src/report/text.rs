//! The report for people.

use std::borrow::Cow;
use std::io::{self, Write};

use super::functions::{FunctionRow, FunctionTable};
use super::interval::Interval;
use super::units::{date, duration, grouped, percent, share};
use super::{Report, shorten, warnings};
use crate::printable::Printable;
use crate::profile::{Counters, RecordingInfo, VcpuStats};

/// As wide as the table's other columns together.
const LABEL_WIDTH: usize = 12;

/// The column in which the names of the table begin.
const NAMES_BEGIN: usize = 70;

/// The columns a name gets however narrow the text is.
const LEAST_NAME: usize = 24;

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = report.symbolized.profile();
    let table = report.functions();
    write_header(profile.recording(), out)?;
    write_warnings(&warnings::of(report, &table), out)?;
    write_accounting(&profile.counters(), profile.recording(), out)?;
    write_times(profile.vcpus(), profile.recording(), out)?;
    write_functions(report, &table, out)
}

/// The accounting as short lines, for formats that hold comments.
pub(super) fn accounting_lines(report: &Report<'_>) -> Vec<String> {
    let profile = report.symbolized.profile();
    let c = profile.counters();
    let recording = profile.recording();
    let mut lines = vec![
        format!(
            "unikprof: guest {:?}{}, recording {:?}, agent {}, {}",
            recording.guest_name,
            match recording.guest_id.as_str() {
                "" => String::new(),
                id => format!(" {}", Printable(id)),
            },
            recording.name,
            Printable(&recording.agent_version),
            recording.architecture
        ),
        format!(
            "ticks {} = recorded {} + overflow {} + lost {} + masked {} + idle {}",
            c.ticks, c.recorded, c.overflow, c.lost, c.masked, c.idle
        ),
        format!(
            "early {}, late {}, truncated {}, broken {}, missing {}",
            c.early, c.late, c.truncated, c.broken, c.missing
        ),
    ];
    lines.extend(
        report
            .warnings()
            .into_iter()
            .map(|warning| format!("warning: {warning}")),
    );
    lines
}

fn write_header(recording: &RecordingInfo, out: &mut impl Write) -> io::Result<()> {
    let or_unnamed = |name: &str| match name {
        "" => "(unnamed)".to_owned(),
        name => Printable(name).to_string(),
    };
    let mut guest = or_unnamed(&recording.guest_name);
    if !recording.guest_id.is_empty() {
        guest.push_str(&format!(" ({})", Printable(&recording.guest_id)));
    }
    row(out, "guest", &guest)?;
    row(out, "recording", &or_unnamed(&recording.name))?;
    let mut rate = match recording.rate_hz() {
        Some(hz) => format!("{hz:.1} Hz, mean period {}", duration(recording.period_ns)),
        None => "unknown".to_owned(),
    };
    rate.push_str(match recording.fixed_interval {
        true => ", fixed interval",
        false => ", random intervals",
    });
    row(out, "rate", &format!("{rate}, mode {}", recording.mode))?;
    let started = recording.started_unix_ns.and_then(date);
    row(
        out,
        "time",
        &format!(
            "{} from {}",
            duration(recording.elapsed_ns),
            started.as_deref().unwrap_or("an unknown date")
        ),
    )?;
    let agent = match recording.agent_version.as_str() {
        "" => "unknown version".to_owned(),
        version => Printable(version).to_string(),
    };
    row(
        out,
        "agent",
        &format!(
            "{agent}, {}, {} frames deep",
            recording.architecture, recording.depth
        ),
    )
}

fn write_warnings(warnings: &[String], out: &mut impl Write) -> io::Result<()> {
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    warnings
        .iter()
        .try_for_each(|warning| writeln!(out, "warning: {warning}"))
}

fn write_accounting(
    c: &Counters,
    recording: &RecordingInfo,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "\nticks = recorded + overflow + lost + masked + idle")?;
    let width = [c.ticks, c.early]
        .iter()
        .map(|n| grouped(*n).len())
        .max()
        .unwrap_or(0);
    let width = width.max(grouped(c.missing).len());
    let mut line = |name: &str, number: String, part: String, what: &str| {
        writeln!(out, "  {name:<9}  {number:>width$}  {part:>7}  {what}")
    };
    let of_ticks = |n| share(n, c.ticks);
    line(
        "ticks",
        grouped(c.ticks),
        String::new(),
        "the sampling timer came due",
    )?;
    line(
        "recorded",
        grouped(c.recorded),
        of_ticks(c.recorded),
        "counted in a stack",
    )?;
    line(
        "overflow",
        grouped(c.overflow),
        of_ticks(c.overflow),
        "the table of stacks was full",
    )?;
    line(
        "lost",
        grouped(c.lost),
        of_ticks(c.lost),
        "the slot was busy",
    )?;
    line(
        "masked",
        grouped(c.masked),
        of_ticks(c.masked),
        "delivered without registers",
    )?;
    line(
        "idle",
        grouped(c.idle),
        of_ticks(c.idle),
        "due while the guest blocked",
    )?;
    writeln!(out, "of the recorded")?;
    let mut line = |name: &str, number: String, part: String, what: &str| {
        writeln!(out, "  {name:<9}  {number:>width$}  {part:>7}  {what}")
    };
    let of_recorded = |n| share(n, c.recorded);
    let late = format!(
        "more than {} after the target",
        duration(recording.late_threshold_ns)
    );
    line("late", grouped(c.late), of_recorded(c.late), &late)?;
    line(
        "truncated",
        grouped(c.truncated),
        of_recorded(c.truncated),
        "deeper than the limit",
    )?;
    line(
        "broken",
        grouped(c.broken),
        of_recorded(c.broken),
        "the chain of frames ended badly",
    )?;
    writeln!(out, "besides")?;
    let mut line = |name: &str, number: String, what: &str| {
        writeln!(out, "  {name:<9}  {number:>width$}           {what}")
    };
    line(
        "early",
        grouped(c.early),
        "before the target: armed again, no tick",
    )?;
    line(
        "missing",
        grouped(c.missing),
        "running time / period - ticks; around zero is noise",
    )
}

fn write_times(
    vcpus: &[VcpuStats],
    recording: &RecordingInfo,
    out: &mut impl Write,
) -> io::Result<()> {
    if !vcpus.is_empty() {
        writeln!(
            out,
            "\nvcpu     running      stolen     blocked     offline    recorded"
        )?;
    }
    for vcpu in vcpus {
        let r = &vcpu.runstate;
        write!(out, "{:>4}", vcpu.vcpu)?;
        for time in [r.running_ns, r.runnable_ns, r.blocked_ns, r.offline_ns] {
            let shown = match time {
                Some(ns) => share(ns, vcpu.elapsed_ns),
                None => "unknown".to_owned(),
            };
            write!(out, "  {shown:>10}")?;
        }
        writeln!(out, "  {:>10}", grouped(vcpu.counters.recorded))?;
    }
    writeln!(out, "\nthe agent's own cost")?;
    for vcpu in vcpus {
        let Some(cost) = &vcpu.cost else {
            writeln!(out, "  vcpu {}    sampling was not measured", vcpu.vcpu)?;
            continue;
        };
        let share = vcpu.cost_share().map_or_else(String::new, |share| {
            format!(" ({:.3} % of running)", share * 100.0)
        });
        writeln!(
            out,
            "  vcpu {}    sampling {}{share}; cycles a sample: p50 {}, p99 {}, max {}",
            vcpu.vcpu,
            duration(cost.total_ns),
            grouped(cost.cycles_p50),
            grouped(cost.cycles_p99),
            grouped(cost.cycles_max)
        )?;
    }
    writeln!(
        out,
        "  network   {} ({} of the recording)",
        duration(recording.server_ns),
        share(recording.server_ns, recording.elapsed_ns)
    )
}

fn write_functions(
    report: &Report<'_>,
    table: &FunctionTable,
    out: &mut impl Write,
) -> io::Result<()> {
    let what = if report.options.lines {
        "lines"
    } else {
        "functions"
    };
    let top = match report.options.top {
        0 => table.rows.len(),
        top => top.min(table.rows.len()),
    };
    writeln!(
        out,
        "\n{} of {} {what}, {} samples; intervals hold 95 %",
        grouped(top as u64),
        grouped(table.rows.len() as u64),
        grouped(table.recorded)
    )?;
    let filters = [
        ("focus", &report.options.focus),
        ("ignore", &report.options.ignore),
    ];
    let filters: Vec<String> = filters
        .iter()
        .filter_map(|(name, regex)| Some(format!("{name} {:?}", regex.as_ref()?.as_str())))
        .collect();
    if !filters.is_empty() {
        writeln!(
            out,
            "shown: {} of {} samples ({}), {}; shares are of all",
            grouped(table.shown),
            grouped(table.recorded),
            share(table.shown, table.recorded),
            filters.join(", ")
        )?;
    }
    if top == 0 {
        return Ok(());
    }
    let heading = if report.options.lines {
        "line"
    } else {
        "function"
    };
    writeln!(
        out,
        "\n      self    share      interval       total    share      interval  {heading}"
    )?;
    let name_columns = report.options.columns;
    let name_columns = name_columns.map(|all| all.saturating_sub(NAMES_BEGIN).max(LEAST_NAME));
    for row in &table.rows[..top] {
        writeln!(
            out,
            "{:>10}  {}  {:>10}  {}  {}",
            grouped(row.own),
            share_columns(&row.own_share),
            grouped(row.total),
            share_columns(&row.total_share),
            match name_columns {
                Some(columns) => row_name(report, row, columns),
                None => (&row.text).into(),
            }
        )?;
    }
    Ok(())
}

/// What a row is called, in at most so many columns as far as its place in the source allows.
pub(super) fn row_name<'r>(
    report: &Report<'_>,
    row: &'r FunctionRow,
    columns: usize,
) -> Cow<'r, str> {
    let symbolized = report.symbolized;
    match row.line.filter(|_| report.options.lines) {
        None => shorten::name(&row.text, columns),
        Some((file, line)) => {
            let file = Printable(symbolized.file(file)).to_string();
            let place = format!(" {}:{line}", shorten::path(&file));
            let left = columns.saturating_sub(place.chars().count());
            let name = Printable(&symbolized.function(row.function).name).to_string();
            (shorten::name(&name, left.max(LEAST_NAME)).into_owned() + &place).into()
        }
    }
}

/// `  42.0 %   41.1 - 43.0` in columns of fixed width.
fn share_columns(interval: &Interval) -> String {
    let ends = format!("{:.1} - {:.1}", interval.low * 100.0, interval.high * 100.0);
    format!("{:>7}  {ends:>12}", percent(interval.share))
}

fn row(out: &mut impl Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{label:<LABEL_WIDTH$}{text}")
}
