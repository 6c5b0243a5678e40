//! `demo`: everything at work on this machine, without a hypervisor.
//!
//! The guest runs on threads of this program: the profiler's agent, and a small request service on
//! two vCPUs. The client meets it as it meets any guest, over TCP.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Args;
use thiserror::Error;

use crate::caller_table;
use crate::cli::{self, Failure};
use crate::exit_code;
use crate::interrupt::Interrupt;
use crate::output::OutputError;
use crate::progress::ProgressLine;
use crate::record::{self, Patience, Session, Settings, Unwind};
use crate::recording::{Reading, Recording};
use crate::report::{Format, Report, ReportOptions, TimelineView};
use crate::symbols::{ImageOptions, Images, Symbolizer};
use crate::timeline::Window;
use crate::units;

/// How many functions the table on the screen shows.
const TOP: usize = 12;

/// What `demo` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
The guest runs in this program and has two vCPUs that serve generated
requests, one continuously and one now and then. It ends with the demo.

Example:
  unikprof-client demo --duration 10s --output /tmp/demo")]
pub(crate) struct DemoArguments {
    /// How long to record
    #[arg(
        long = "duration", value_name = "TIME", default_value = "5s",
        value_parser = cli::nanoseconds
    )]
    duration_ns: u64,
    /// The directory for the recording and its reports; created if missing
    #[arg(short = 'o', long, value_name = "DIR", default_value = "unikprof-demo")]
    output: PathBuf,
}

/// Why there is no demo.
#[derive(Debug, Error)]
pub(crate) enum DemoError {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[error("cannot start the demo guest: {0}")]
    Start(std::io::Error),
    #[error("--duration must be above 0")]
    NoTime,
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[error("cannot start the agent in the demo guest: {0}")]
    Agent(unikprof_agent::hosted::Error),
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    #[error("the demo guest runs on x86-64 Linux only")]
    Unsupported,
}

impl DemoError {
    /// The program's exit code for it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            DemoError::NoTime => exit_code::USAGE,
            _ => exit_code::OTHER,
        }
    }
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    if arguments.duration_ns == 0 {
        return Err(DemoError::NoTime.into());
    }
    let directory = &arguments.output;
    fs::create_dir_all(directory).map_err(OutputError::at(directory))?;
    let interrupt = Interrupt::default();
    interrupt.listen().map_err(Failure::Signals)?;
    let guest_ends = Arc::new(AtomicBool::new(false));
    let address = guest::start(&guest_ends)?;
    let path = directory.join("demo.unikprof");
    let mut session = Session::open(address.clone(), Patience::default(), interrupt)?;
    tell!("recording the demo guest at {address} for {}", units::duration(arguments.duration_ns));
    let symbolizer = Symbolizer::new(Images::new(ImageOptions::default()));
    // The C library keeps no frame pointers.
    let unwind = Unwind::Table;
    let settings = Settings {
        name: "demo".into(),
        duration_ns: arguments.duration_ns,
        unwind,
        callers: caller_table::prepare(&symbolizer, session.agent(), unwind)?.table,
        ..Settings::default()
    };
    let mut progress = ProgressLine::on_stderr();
    let outcome = record::record(&mut session, &settings, &path, &mut progress)?;
    progress.finish();
    guest_ends.store(true, Relaxed);
    if let Some(reason) = outcome.incomplete {
        return Err(Failure::Incomplete { path: outcome.path, reason: reason.to_string() });
    }
    show(&path, &symbolizer, directory)
}

/// Writes every report and prints the shortest.
fn show(path: &Path, symbolizer: &Symbolizer, directory: &Path) -> Result<(), Failure> {
    let recording = Recording::open(path, Reading::Strict)?;
    let symbolized = symbolizer.resolve(&recording.profile)?;
    let brief =
        ReportOptions { top: TOP, columns: Some(cli::columns()), ..ReportOptions::default() };
    let mut screen = Vec::new();
    Report::new(&symbolized, brief)
        .with_timeline(TimelineView::of(&recording))
        .write(Format::Text, &mut screen)
        .map_err(|source| Failure::Report { path: "-".into(), source })?;
    cli::print_local(true, screen)?;

    let report = Report::new(&symbolized, ReportOptions::default())
        .with_timeline(TimelineView::of(&recording))
        .with_callers(symbolizer);
    let mut written = Vec::new();
    for (name, format, what) in [
        (
            "demo.html",
            Format::Page,
            "the recording over time, as flame graph and table; open it in a browser",
        ),
        ("demo.svg", Format::Svg, "flame graph as one picture"),
        ("demo.folded", Format::Folded, "folded stacks for other flame graph tools"),
        ("demo.pb.gz", Format::Pprof, "for `go tool pprof -http :`"),
        ("demo.txt", Format::Text, "the tables in full"),
    ] {
        if format == Format::Svg && !cfg!(feature = "svg") {
            continue;
        }
        let file = directory.join(name);
        cli::write_report(&report, format, &file)?;
        written.push((file, what));
    }
    let what = "the recording; all other files are made from it";
    written.insert(1, (path.to_owned(), what));
    let spans = recording.timeline.as_ref();
    let spans = spans.map(|timeline| timeline.spans(Window::ALL));
    // On a busy machine a short demo may have seen none of the guest's spans.
    let mut span = spans.iter().flatten().map(|table| table.name.as_str());
    // The program as it was called, since it may be in no folder of PATH.
    let program = std::env::args().next();
    let program = program.as_deref().unwrap_or("unikprof-client");
    cli::print(next_steps(program, path, &written, span.next_back()))
}

fn next_steps(
    program: &str,
    recording: &Path,
    written: &[(PathBuf, &str)],
    span: Option<&str>,
) -> String {
    let width = written.iter().map(|(path, _)| path.as_os_str().len()).max();
    let width = width.unwrap_or(0);
    let mut text = String::from("\nWritten:\n");
    for (path, what) in written {
        text.push_str(&format!("  {:width$}  {what}\n", path.display().to_string()));
    }
    let recording = recording.display();
    let in_span = span
        .map_or(String::new(), |name| format!("  {program} report {recording} --in-span {name}\n"));
    text.push_str(&format!(
        "\nTry next:\n\
         \x20 {program} report {recording} --lines --top 20\n\
         \x20 {program} report {recording} --timeline --step 250ms\n\
         {in_span}\
         \x20 {program} report {recording} --focus is_spam -o spam.svg     the mistake that takes \
         half of the guest's time\n\
         \x20 {program} connect ADDR record 30s     record your own guest\n"
    ));
    text
}
