//! `view`: a recording in the Firefox profiler's front end, or in our own page.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::warn;
use super::print;
use super::report::InputArguments;
use super::time::PartArguments;
use crate::view::{Server, View};
use unikprof_report::report::without_sampler;
use unikprof_report::report::{Report, ReportOptions};

#[derive(Debug, Args)]
#[command(after_help = VIEW_HELP, arg_required_else_help = true)]
pub(super) struct ViewArguments {
    #[command(flatten)]
    input: InputArguments,
    /// A folder with the source files, if they are not where they were compiled; can be repeated
    #[arg(long, value_name = "FOLDER")]
    source: Vec<PathBuf>,
    /// The port to listen on, at 127.0.0.1; 0 is any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Open our own page, which needs nothing from the network
    #[arg(long)]
    page: bool,
    /// Print the addresses and open no browser
    #[arg(long, conflicts_with = "page")]
    no_open: bool,
    /// Print the addresses as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    time: PartArguments,
    #[command(flatten)]
    names: NameArguments,
}

const VIEW_HELP: &str = "\
Serves the recording on this machine until Ctrl-C, and opens the Firefox
profiler (profiler.firefox.com) in a browser. Its page asks this machine for the
profile, for source files and for instructions; nothing is uploaded. A browser
may forbid a page of the network to ask this machine, or ask you first. Our own
page, the second address, then shows the recording.

Only 127.0.0.1 is listened on, only requests with the random token in the
addresses are answered, and only source files that the debug information names
are read.

Examples:
  unikprof-client view run.unikprof --image guest.elf
  unikprof-client view run.unikprof --image guest.elf --page
  unikprof-client view run.unikprof --no-open --port 4000";

pub(super) fn run(arguments: &ViewArguments) -> Result<(), Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let recording = arguments.input.open_samples()?;
    let part = arguments.time.of(&recording, false)?;
    let cut = part.as_ref().and_then(|part| part.profile.as_ref());
    let profile = cut.unwrap_or(&recording.profile);
    let mut symbolized = symbolizer.resolve(profile)?;
    let trimmed = without_sampler(&symbolized);
    let profile = trimmed.as_ref().unwrap_or(profile);
    if let Some(trimmed) = &trimmed {
        symbolized = symbolized.of_window(trimmed);
    }
    let mut report = Report::new(&symbolized, ReportOptions::default()).with_callers(&symbolizer);
    if let Some((part, timeline)) = part.as_ref().zip(recording.timeline.as_ref()) {
        report = report.with_timeline(part.view(timeline));
    }
    warn(report.warnings(), false);
    let view = View::of(report, profile, &symbolizer, &arguments.source)?;
    let server = Server::listen(arguments.port)?;
    let (front_end, page) = (server.front_end(), server.page());
    if arguments.json {
        let addresses = json!({ "firefox": front_end, "page": page, "server": server.address() });
        print(format!("{addresses}\n"))?;
    } else {
        print(format!(
            "firefox      {front_end}\npage         {page}\nserving until Ctrl-C; if the browser \
             forbids the first, open the second\n"
        ))?;
    }
    if !arguments.no_open {
        let address = if arguments.page { &page } else { &front_end };
        if let Err(error) = ::open::that(address) {
            tell!("warning: cannot start a browser: {error}; open one of the addresses yourself");
        }
    }
    Err(server.serve(&view).into())
}
