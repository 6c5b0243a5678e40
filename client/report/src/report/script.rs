//! One line for each tick and wait, for other programs.
//!
//! Without JSON the columns are separated by tabs, and the first line, which begins with `#`, names
//! them:
//!
//! | column | what |
//! |---|---|
//! | `time` | the date (UTC), or if the guest knows none, seconds since the start of the recording |
//! | `vcpu` | the vCPU |
//! | `outcome` | `recorded`, `late`, `aged`; without a stack `overflow`, `lost`, `masked`, `idle`; `blocked` for a wait |
//! | `blocked_ns` | how long a wait took, as far as it lies in the time shown; else `-` |
//! | `span` | the innermost open span of the guest's; `-` if none |
//! | `stack` | as in folded stacks, `root;caller;leaf`; `-` if there is none |
//!
//! In JSON each line is an object with these fields, `at_ns` since the start of the recording,
//! `unix_ns` (or `null`), and `stack` as an array, root first; unknown values are `null`.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use super::folded::foldable_names;
use super::labels::LabelId;
use super::{Report, TimelineView};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Mode, NodeId};
use unikprof_profile::timeline::{Outcome, Tick};

/// How the lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptFormat {
    /// Columns with tabs between them.
    Columns,
    /// An object on each line.
    Json,
}

#[derive(Serialize)]
struct Line<'l> {
    at_ns: u64,
    unix_ns: Option<u64>,
    vcpu: u32,
    outcome: &'static str,
    blocked_ns: Option<u64>,
    span: Option<&'l str>,
    stack: Option<Vec<&'l str>>,
}

pub(super) fn write(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    format: ScriptFormat,
    out: &mut impl Write,
) -> io::Result<()> {
    let timeline = view.timeline;
    let clock = timeline.wall_clock();
    let began_ns = view.of.window.from_ns;
    let info = report.symbolized.profile().recording();
    let unit_ns = if info.mode == Mode::Wall { info.period_ns } else { 1 };
    let names = match format {
        ScriptFormat::Columns => foldable_names(&report.labels),
        ScriptFormat::Json => {
            let labels = report.labels.all().iter();
            labels.map(|label| label.text.clone()).collect()
        }
    };
    if format == ScriptFormat::Columns {
        writeln!(out, "# time\tvcpu\toutcome\tblocked_ns\tspan\tstack")?;
    }
    let keeps = |tick: &Tick| match tick.stack {
        Some(stack) => report.weights.keeps(stack),
        None => report.options.focus.is_none(),
    };
    let inside = report.symbolized.profile().recording().inside();
    let ticks = timeline.ticks(&view.of, view.window, inside);
    for tick in ticks.filter(keeps) {
        let stack = tick.stack.map(|stack| root_first(report, stack));
        let stack = stack.map(|labels| {
            let labels = labels.into_iter();
            labels.map(|label| names[label as usize].as_str()).collect()
        });
        let span = tick.span.map(|span| timeline.name_or_id(span.name));
        let line = Line {
            at_ns: tick.at_ns.saturating_sub(began_ns),
            unix_ns: clock.unix_ns(tick.at_ns),
            vcpu: tick.vcpu,
            outcome: tick.outcome.name(),
            blocked_ns: match tick.outcome {
                Outcome::Blocked { count, .. } => Some(count.saturating_mul(unit_ns)),
                _ => None,
            },
            span: span.as_deref(),
            stack,
        };
        match format {
            ScriptFormat::Columns => line.write(out)?,
            ScriptFormat::Json => {
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")?;
            }
        }
    }
    Ok(())
}

impl Line<'_> {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let date = self.unix_ns.and_then(|unix_ns| {
            let date = Timestamp::from_nanosecond(i128::from(unix_ns)).ok()?;
            Some(date.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string())
        });
        match date {
            Some(date) => out.write_all(date.as_bytes())?,
            None => {
                write!(out, "{}.{:09}", self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000)?;
            }
        }
        write!(out, "\t{}\t{}\t", self.vcpu, self.outcome)?;
        match self.blocked_ns {
            Some(ns) => write!(out, "{ns}")?,
            None => out.write_all(b"-")?,
        }
        match self.span {
            Some(span) => write!(out, "\t{}\t", Printable(span))?,
            None => out.write_all(b"\t-\t")?,
        }
        match &self.stack {
            Some(stack) => writeln!(out, "{}", stack.join(";")),
            None => writeln!(out, "-"),
        }
    }
}

/// The labels of a stack, root first.
pub(super) fn root_first(report: &Report<'_>, stack: NodeId) -> Vec<LabelId> {
    let frames = report.symbolized.profile().stack(stack);
    let labels = frames.flat_map(|frame| report.labels.of_frame(frame));
    let mut labels: Vec<LabelId> = labels.copied().collect();
    labels.reverse();
    labels
}
