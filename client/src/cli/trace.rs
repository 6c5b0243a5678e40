//! `connect ADDR trace`: every call of some functions, with its duration.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::describe::Rows;
use super::failure::Failure;
use super::name_pattern::{NamePattern, NamedAfter};
use super::names::NameArguments;
use super::output_format::OutputFormat;
use super::outputs::{
    Plan, ReportOutput, Target, is_device, no_input_is_replaced, warn, write_each,
};
use super::signals::Kept;
use super::{print, print_local, screen, values};
use crate::progress::ProgressLine;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::plan::{self, Wanted};
use unikprof_link::record::{self, Outcome, RecordError, Session};
use unikprof_profile::output::AtomicFile;
use unikprof_profile::printable::path_word;
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::Symbolizer;
use unikprof_profile::trace::Pattern;
use unikprof_report::report::trace::{Sort, TraceOptions, TraceView, check_format};
use unikprof_report::report::{Format, SortBy};

/// The slowest calls that are shown.
const SLOWEST: usize = 10;

pub(super) const HELP: &str = "\
Sets breakpoints at the entry and at the exits of the functions that match, in
the running guest, and removes them at the end, on Ctrl-C, and if the client is
gone for too long. Nothing in the guest is rebuilt or restarted. The guest must
allow tracing, and a key must have the role trace.

A pattern is a name in which * stands for any characters, and matches all of a
name or what follows a `::` or a `.` in it, as netif::* does in
kernel::netif::poll. /REGEX/ matches anywhere. Functions are found in the images
given with --image, or else in the guest's program if its file is on this
machine. A function that cannot be traced is named with the reason.

Shown are a table, which is complete, and the slowest calls, from the agent's
rings. The page (-o FILE.html) has each call, over time and inside its caller.
Calls that ended by an exception, or had not ended, say so.

Examples:
  unikprof-client connect 10.0.0.5 trace 'tcp_*' --for 5s --image guest.elf
  unikprof-client connect 10.0.0.5 trace main 'netif::*' --depth 1 --for 5s -o run.html
  unikprof-client connect 10.0.0.5 trace 'handle_*' --for 10s -o run.unikprof -o run.trace.json
  unikprof-client connect 10.0.0.5 trace --count '/^ext4_/' --for 5s
  unikprof-client connect 10.0.0.5 trace --slow 10ms handle_request 'db_*' -o slow.unikprof";

#[derive(Debug, Args)]
pub(super) struct TraceArguments {
    /// The functions to trace: names with * and ?, or /REGEX/; at most 1000 functions
    ///
    /// With --slow, the calls of those that match the first pattern are the ones that must be slow.
    #[arg(value_name = "PATTERN", required = true)]
    patterns: Vec<Pattern>,
    /// How long to trace, for example 5s; until Ctrl-C if 0 or omitted
    #[arg(
        long = "for", value_name = "TIME", default_value = "0s", hide_default_value = true,
        value_parser = values::nanoseconds
    )]
    duration_ns: u64,
    /// Trace what these functions call directly as well, and so on this many times
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    depth: usize,
    /// The share of one CPU that the trace may cost: the agent removes the probes of the functions
    /// that are called most when it costs more; 0 sets no limit
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = permille)]
    max_cost: u32,
    /// Only count calls and measure durations: keep no single calls, and need no ring
    #[arg(long, conflicts_with = "slow")]
    count: bool,
    /// Keep only calls that take so long, of the functions that the first pattern matches, with the
    /// calls inside them
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds)]
    slow: Option<u64>,
    /// Write to this file, in the format of its extension; can be repeated
    ///
    /// .unikprof is the trace itself, from which `report` makes all other formats; .html is a page
    /// with each call over time, .txt the table and the slowest calls, .svg the calls over time,
    /// .profile.json.gz is for the Firefox profiler, .trace.json for Chrome and Perfetto, .folded
    /// are folded stacks of self time, .json is for programs; - is standard output. In the name, %t
    /// stands for the time (UTC), %n for the guest's name and %r for `trace`. Default: text on
    /// standard output.
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = "Output")]
    output: Vec<NamePattern>,
    #[command(flatten)]
    view: TraceViewArguments,
    /// Number of functions in the table; 0 lists all
    #[arg(
        long, value_name = "COUNT", default_value_t = 30, value_parser = values::count,
        help_heading = "Selection"
    )]
    top: usize,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

/// What of a trace is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(super) struct TraceViewArguments {
    /// Leave out single calls that took less
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds)]
    min: Option<u64>,
    /// Leave out single calls of these functions and keep what they called; can be repeated
    #[arg(long, value_name = "PATTERN")]
    hide: Vec<Pattern>,
    /// Only calls inside of calls of this function, and these
    #[arg(long = "in", value_name = "PATTERN")]
    inside: Option<Pattern>,
    /// Show so many of the slowest calls, of the --of functions or of those that no traced function
    /// called; 10 if omitted
    #[arg(long, value_name = "N", value_parser = values::count)]
    slowest: Option<usize>,
    /// Show the callers of these functions, and their slowest calls
    #[arg(long, value_name = "PATTERN")]
    of: Option<Pattern>,
    /// The order of the table, total if omitted; calls and max are for traces
    #[arg(long, value_enum, value_name = "ORDER", help_heading = "Selection")]
    sort: Option<Sort>,
}

impl TraceViewArguments {
    /// Whether the user wants anything of this.
    pub(super) fn is_given(&self) -> bool {
        self.min.is_some()
            || !self.hide.is_empty()
            || self.inside.is_some()
            || self.slowest.is_some()
            || self.of.is_some()
            || matches!(self.sort, Some(Sort::Calls | Sort::Max))
    }

    /// The order of a table of samples.
    pub(super) fn sort_of_functions(&self) -> SortBy {
        match self.sort {
            Some(Sort::Own) => SortBy::Own,
            _ => SortBy::Total,
        }
    }

    fn options(&self, top: usize) -> TraceOptions {
        TraceOptions {
            min_ns: self.min.unwrap_or(0),
            hide: self.hide.clone(),
            inside: self.inside.clone(),
            of: self.of.clone(),
            slowest: self.slowest.unwrap_or(SLOWEST),
            sort: self.sort.unwrap_or_default(),
            top,
            columns: Some(screen::columns()),
        }
    }
}

/// A share of a CPU in thousandths.
fn permille(text: &str) -> Result<u32, String> {
    let number = text.trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(0.0) => Ok(0),
        Ok(percent) if (0.1..=100.0).contains(&percent) => Ok((percent * 10.0).round() as u32),
        _ => {
            Err("expected a share of one CPU from 0.1% to 100%, such as `5%`, or 0 for no limit"
                .into())
        }
    }
}

pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    symbolizer: &Symbolizer,
    inputs: &[PathBuf],
    arguments: &TraceArguments,
    as_json: bool,
) -> Result<(), Failure> {
    let agent = session.agent().clone();
    let default = ["-".parse().map_err(|error| Failure::Usage(format!("{error}")))?];
    let patterns = match arguments.output.as_slice() {
        [] => &default[..],
        given => given,
    };
    let format = as_json.then_some(OutputFormat::Report(Format::Json));
    let plan = Plan::new(
        patterns,
        format.filter(|_| arguments.output.is_empty()),
        &NamedAfter {
            guest: agent.guest_name.as_deref(),
            recording: "trace",
            time: session.connected(),
        },
    )?;
    no_input_is_replaced(inputs, plan.files())?;
    // Before the images are disassembled for nothing.
    if !agent.allows_traces() {
        return Err(RecordError::NoTraces.into());
    }
    for output in &plan.reports {
        let checked = check_format(output.format, !arguments.count);
        checked.map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let view = &arguments.view;
    let of = view.of.iter().map(|it| ("--of", it.clone()));
    let hide = view.hide.iter().map(|it| ("--hide", it.clone()));
    let wanted = Wanted {
        shown: of.chain(hide).collect(),
        patterns: arguments.patterns.clone(),
        inside: view.inside.clone(),
        depth: arguments.depth,
        count_only: arguments.count,
        slow_ns: arguments.slow.unwrap_or(0),
        max_cost_permille: arguments.max_cost,
        duration_ns: arguments.duration_ns,
    };
    let mut progress = ProgressLine::on_stderr();
    // Until probes are set, Ctrl-C may end the program as it ends any other.
    progress.prepare("looking for the functions in the images");
    let kept = Kept::default();
    let outcome = plan::plan(symbolizer, &agent, &wanted, |order, placement| {
        // From here on, an end must be an orderly one.
        let stopping = progress.stopping("calls");
        kept.listen(interrupt, stopping).map_err(Failure::Signals)?;
        let name_of = |code| placement.name(code);
        let outcome = record::trace(session, order, plan.recording.path(), &name_of, &mut progress);
        Ok::<_, Failure>(outcome?)
    });
    progress.finish();
    let outcome = outcome??;
    kept.is_in(&outcome.path);
    let shown = show(arguments, &plan, &outcome.path, as_json);
    let Outcome { path, displaced, incomplete, .. } = outcome;
    let ended = Failure::of_recording(path, displaced, shown, false, incomplete);
    ended.inspect_err(|failure| {
        if failure.text().is_some() {
            plan.recording.keep();
        }
    })
}

fn show(
    arguments: &TraceArguments,
    plan: &Plan,
    path: &Path,
    as_json: bool,
) -> Result<(), Failure> {
    if is_device(path) {
        return Ok(());
    }
    let recording = Recording::open(path, Reading::Strict)?;
    let options = arguments.view.options(arguments.top);
    let is_stdout = |output: &ReportOutput| output.target == Target::Stdout;
    let has_stdout = plan.reports.iter().any(is_stdout);
    write_all(&plan.reports, &recording, &options, !has_stdout && !as_json)?;
    if has_stdout {
        return Ok(());
    }
    let recording_path = plan.recording.is_wanted().then_some(path);
    let reports = plan.reports.iter().map(|output| &output.target);
    let reports = reports.filter_map(|target| match target {
        Target::File(path) => Some(path.as_path()),
        Target::Stdout => None,
    });
    let files = recording_path.into_iter().chain(reports);
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    if as_json {
        return print(format!("{:#}\n", json!({ "files": files })));
    }
    let mut rows = Rows::default();
    for file in &files {
        rows.add("wrote", file);
    }
    if let Some(path) = recording_path {
        let command = format!("unikprof-client report {} --open", path_word(path));
        rows.add("next", command);
    }
    print(format!("\n{}", rows.0))
}

/// Writes a trace's reports, and if `summarizes` its table to standard output. Its warnings go to
/// standard error unless a text on standard output has them.
fn write_all(
    outputs: &[ReportOutput],
    recording: &Recording,
    options: &TraceOptions,
    summarizes: bool,
) -> Result<(), Failure> {
    let Some(traced) = &recording.trace else {
        return Err(Failure::Usage("the file has no trace".into()));
    };
    write_each(outputs, |output| {
        let is_stdout = output.target == Target::Stdout;
        let options =
            TraceOptions { columns: options.columns.filter(|_| is_stdout), ..options.clone() };
        let view = TraceView::new(traced, recording.timeline.as_ref(), options);
        output.write_with(&mut |out| view.write(output.format, out))
    })?;
    let is_shown =
        |output: &ReportOutput| output.target == Target::Stdout && output.format.has_warnings();
    if !outputs.iter().any(is_shown) {
        let view = TraceView::new(traced, recording.timeline.as_ref(), options.clone());
        if summarizes {
            let mut text = Vec::new();
            view.write_summary(&mut text).map_err(Failure::Stdout)?;
            return print_local(true, text);
        }
        warn(view.warnings(), false);
    }
    Ok(())
}

/// Shows the trace in a recording; `false` if it has none.
pub(super) fn report(
    recording: &Recording,
    view: &TraceViewArguments,
    outputs: &[ReportOutput],
    top: usize,
) -> Result<bool, Failure> {
    match &recording.trace {
        Some(_) => write_all(outputs, recording, &view.options(top), false).map(|()| true),
        None if view.is_given() => Err(Failure::Usage(
            "--min, --hide, --in, --slowest, --of and --sort calls or max are for traces, and the \
             file has none"
                .into(),
        )),
        None => Ok(false),
    }
}

impl ReportOutput {
    /// Writes an output, whole or not at all.
    fn write_with(
        &self,
        write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match &self.target {
            Target::Stdout => {
                let mut bytes = Vec::new();
                write(&mut bytes).map_err(|error| Failure::Usage(error.to_string()))?;
                screen::print_output(self.format == Format::Text, bytes)
            }
            Target::File(path) => Ok(AtomicFile::create(path)?.write_whole(|file| write(file))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::permille;

    #[test]
    fn a_limit_that_would_round_to_none_is_refused() {
        assert_eq!(permille("0"), Ok(0));
        assert_eq!(permille("0.1%"), Ok(1));
        assert_eq!(permille("5 %"), Ok(50));
        for text in ["0.01%", "-1", "101", "much"] {
            assert!(permille(text).is_err(), "{text}");
        }
    }
}
