//! `script`: what a recording sampled, a line each.

use std::io::{self, BufWriter, Write as _};

use clap::Args;

use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::warn;
use super::report::InputArguments;
use super::time::{PartArguments, no_times};
use unikprof_report::report::{FunctionName, Report, ReportOptions, ScriptFormat};

#[derive(Debug, Args)]
#[command(after_help = SCRIPT_HELP, arg_required_else_help = true)]
pub(super) struct ScriptArguments {
    #[command(flatten)]
    input: InputArguments,
    /// Only stacks with a function whose name matches
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    focus: Option<FunctionName>,
    /// No stacks with a function whose name matches
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    ignore: Option<FunctionName>,
    /// Leave inlined functions out of the stacks
    #[arg(long, help_heading = "Selection")]
    no_inlines: bool,
    /// Print each line as a JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    time: PartArguments,
    #[command(flatten)]
    names: NameArguments,
}

const SCRIPT_HELP: &str = "\
Prints a line for each tick of the sampling timer, and for each wait in the
modes wall and off-cpu, in the order of time. Columns are separated by tabs:
time, vCPU, outcome, blocked ns, span and stack (root;caller;leaf). It needs a
recording of an agent that keeps a ring.

Examples:
  unikprof-client script run.unikprof --image guest.elf
  unikprof-client script run.unikprof --image guest.elf --last 1s --json | jq .stack
  unikprof-client script run.unikprof --in-span request | cut -f 6 | sort | uniq -c
  unikprof-client script run.unikprof | cut -f 5 | sort | uniq -c";

pub(super) fn run(arguments: &ScriptArguments) -> Result<(), Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let recording = arguments.input.open_samples()?;
    let part = arguments.time.of(&recording, false)?;
    let mode = recording.profile.recording().mode;
    if mode.is_heap() {
        return Err(Failure::Usage(format!(
            "script prints samples of time, and the recording is of mode {mode}; use `report`"
        )));
    }
    let Some((part, timeline)) = part.zip(recording.timeline.as_ref()) else {
        return Err(no_times());
    };
    let cut = part.profile.as_ref();
    let symbolized = symbolizer.resolve(cut.unwrap_or(&recording.profile))?;
    for name in [&arguments.focus, &arguments.ignore].into_iter().flatten() {
        name.check(&symbolized).map_err(Failure::Function)?;
    }
    let options = ReportOptions {
        focus: arguments.focus.clone(),
        ignore: arguments.ignore.clone(),
        no_inlines: arguments.no_inlines,
        ..ReportOptions::default()
    };
    let report = Report::new(&symbolized, options).with_timeline(part.view(timeline));
    report.check_filters().map_err(Failure::Function)?;
    warn(symbolized.warnings(), false);
    let format = if arguments.json { ScriptFormat::Json } else { ScriptFormat::Columns };
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let written = report.write_script(format, &mut out);
    written.and_then(|()| out.flush()).map_err(Failure::Stdout)
}
