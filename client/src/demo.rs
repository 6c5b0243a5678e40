//! `demo`: everything at work on this machine, without a hypervisor.
//!
//! The guest runs on threads of this program: the profiler's agent, and a small request service on
//! two vCPUs. The client meets it as it meets any guest, over TCP.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use thiserror::Error;

use crate::cli::{self, Failure, signals};
use crate::progress::ProgressLine;
use unikprof_link::connection::Address;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Patience, Session, Settings};
use unikprof_profile::caller_table;
use unikprof_profile::output::OutputError;
use unikprof_profile::profile::Unwind;
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_profile::units;
use unikprof_report::report::{Format, Report, ReportOptions, TimelineView};

/// How many functions the table on the screen shows.
const TOP: usize = 8;

/// The name of the page.
const PAGE: &str = "demo.html";

const HOUR: Duration = Duration::from_secs(3600);

/// What `demo` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
The guest runs in this program and has two vCPUs that serve generated
requests, one continuously and one now and then. It ends with the demo.

Examples:
  unikprof-client demo --open
  unikprof-client demo --hold --duration 10s --output /tmp/demo")]
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
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
    /// Keep the guest for `connect`, until Ctrl-C
    #[arg(long)]
    hold: bool,
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

pub(crate) fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    if arguments.duration_ns == 0 {
        return Err(DemoError::NoTime.into());
    }
    let directory = &arguments.output;
    fs::create_dir_all(directory).map_err(OutputError::at(directory))?;
    let interrupt = Interrupt::default();
    signals::listen(&interrupt).map_err(Failure::Signals)?;
    let guest_ends = Arc::new(AtomicBool::new(false));
    let address = guest::start(&guest_ends)?;
    let path = directory.join("demo.unikprof");
    let mut session = Session::open(address.clone(), Patience::default(), interrupt.clone())?;
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
    guest_ends.store(!arguments.hold, Relaxed);
    if let Some(reason) = outcome.incomplete {
        return Err(Failure::Incomplete { path: Some(outcome.path), reason: reason.to_string() });
    }
    show(&path, &symbolizer, directory, arguments.hold.then_some(&address))?;
    if arguments.open {
        cli::open_page(directory.join(PAGE))?;
    }
    if arguments.hold {
        tell!("the demo guest runs at {address} until Ctrl-C");
        while interrupt.sleep_until(Instant::now() + HOUR, Interrupt::stop) {}
        guest_ends.store(true, Relaxed);
    }
    Ok(())
}

/// Writes every report and prints the shortest. `held`: where the guest goes on.
fn show(
    path: &Path,
    symbolizer: &Symbolizer,
    directory: &Path,
    held: Option<&Address>,
) -> Result<(), Failure> {
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
    for (name, format) in [
        (PAGE, Format::Page),
        ("demo.svg", Format::Svg),
        ("demo.folded", Format::Folded),
        ("demo.pb.gz", Format::Pprof),
        ("demo.txt", Format::Text),
    ] {
        // A picture without samples, or one that is not built in.
        if report.suits(format).is_err() {
            continue;
        }
        cli::write_report(&report, format, &directory.join(name))?;
        written.push(name);
    }
    // The program as it was called, since it may be in no folder of PATH.
    let program = std::env::args().next();
    let program = program.as_deref().unwrap_or("unikprof-client");
    cli::print(next_steps(program, path, &written, held))
}

fn next_steps(program: &str, recording: &Path, written: &[&str], held: Option<&Address>) -> String {
    let (page, others) = written.split_first().unwrap_or((&PAGE, &[]));
    let page = recording.with_file_name(page);
    let width = recording.as_os_str().len();
    let (page, recording) = (page.display().to_string(), recording.display());
    let mut text = format!(
        "\nWritten:\n\
         \x20 {page:width$}  for a browser: over time, flame graph, table\n\
         \x20 {recording}  the recording; all other files are made from it\n\
         \x20 {:width$}  beside them\n",
        others.join(", ")
    );
    let address = held.map_or("ADDR".to_owned(), ToString::to_string);
    text.push_str("\nTry next:\n");
    for (word, words) in [
        ("report", format!("{recording} --annotate is_spam")),
        ("report", format!("{recording} --timeline --step 250ms")),
        ("connect", format!("{address} record 30s")),
    ] {
        let command = format!("{program} {word}");
        text.push_str(&format!("  {}\n", cli::pasted(2, &command, &words)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three findings, eight functions and three warnings of two lines each leave so much of the 40
    /// lines that the demo may print.
    #[test]
    fn what_was_written_and_what_comes_next_takes_ten_lines() {
        let written = [PAGE, "demo.svg", "demo.folded", "demo.pb.gz", "demo.txt"];
        let path = Path::new("unikprof-demo/demo.unikprof");
        let text = next_steps("unikprof-client", path, &written, None);
        assert!(text.lines().count() <= 10, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
