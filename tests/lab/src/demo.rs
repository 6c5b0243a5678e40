//! `xen-demo`: from nothing to a flame graph of a unikernel on a real Xen.

mod own_kernel;

use std::fmt::Write as _;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use thiserror::Error;
use unikprof_client::cli::signals;
use unikprof_client::exit_code;
use unikprof_client::progress::ProgressLine;
use unikprof_link::connection::{Address, ConnectionError};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Patience, RecordError, Session, Settings};
use unikprof_profile::caller_table::{self, CallerTableError};
use unikprof_profile::output::{AtomicFile, OutputError};
use unikprof_profile::profile::Unwind;
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_profile::symbols::{Force, ImageOptions, Images, SymbolError, Symbolizer};
use unikprof_report::report::{Format, Report, ReportError, ReportOptions, TimelineView};

use crate::profiled::{profiled_kernel, profiler_address, start_profiled};
use crate::{Lab, LabConfig, LabError, Processor, build_xen_guest_for, download, is_downloaded};

const GUEST: &str = "xen-demo";

/// The guest's features: its work, and an agent that also samples allocations.
const FEATURES: &[&str] = &["demo", "heap"];

/// The port of the echo service.
const ECHO_PORT: u16 = 7;

/// The number of functions in the table on the screen.
const TOP: usize = 12;

/// Boots a unikernel on a real Xen in an emulated machine, records it and shows where its time
/// goes.
///
/// The first run downloads Xen, a Linux dom0 and QEMU as Debian packages (about 170 MB, and for
/// aarch64 another 250 MB with a Rust compiler) into the target directory. No root is needed and
/// nothing is installed.
#[derive(Debug, Parser)]
#[command(
    name = "xen-demo",
    after_help = "\
Example:
  cargo run --release -p unikprof-lab --bin xen-demo -- --duration 30s --output demo
  cargo run --release -p unikprof-lab --bin xen-demo -- --hold
  cargo run --release -p unikprof-lab --bin xen-demo -- --arch aarch64
  cargo run --release -p unikprof-lab --bin xen-demo -- --kernel my-guest.elf --hold"
)]
struct Arguments {
    /// How long to record
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::parse_duration)]
    duration: Duration,
    /// Samples a second of running time, on each vCPU
    #[arg(
        long, value_name = "HZ", default_value_t = 997,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    rate: u32,
    /// The emulated machine's processor
    #[arg(long, value_name = "ARCH", value_enum, default_value_t)]
    arch: Processor,
    /// The guest's vCPUs; they share one emulated processor. On aarch64 the demo's guest has one
    #[arg(
        long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=8)
    )]
    vcpus: u32,
    /// Share of its time that each vCPU works, in percent
    #[arg(
        long, value_name = "PERCENT", default_value_t = 70,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    load: u32,
    /// The directory for the recording and its reports; made if it is not there
    #[arg(short = 'o', long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    /// Leave the guest running afterwards, until Ctrl-C or Enter
    #[arg(long)]
    hold: bool,
    #[command(flatten)]
    own: own_kernel::KernelArguments,
}

/// Why there is no demo.
#[derive(Debug, Error)]
enum DemoError {
    #[error("--duration must be above 0")]
    NoTime,
    #[error("--vcpus: the guest for aarch64 has one vCPU")]
    TooManyVcpus,
    #[error("cannot read the kernel {}: {source}", path.display())]
    Kernel { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    #[error(transparent)]
    Callers(#[from] CallerTableError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot write {}: {source}", path.display())]
    Report { path: PathBuf, source: ReportError },
    #[error("the recording is incomplete: {reason}\nwhat arrived is in {}", path.display())]
    Incomplete { path: PathBuf, reason: RecordError },
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
}

impl DemoError {
    fn exit_code(&self) -> u8 {
        match self {
            DemoError::NoTime | DemoError::TooManyVcpus => exit_code::USAGE,
            DemoError::Kernel { .. } => exit_code::INPUT,
            DemoError::Output(_) | DemoError::Report { .. } => exit_code::OUTPUT,
            DemoError::Incomplete { .. } => exit_code::INCOMPLETE,
            _ => exit_code::OTHER,
        }
    }
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), DemoError> {
    if arguments.duration.is_zero() {
        return Err(DemoError::NoTime);
    }
    if let Some(kernel) = &arguments.own.kernel {
        return own_kernel::run(arguments, kernel.clone());
    }
    if arguments.arch == Processor::Aarch64 && arguments.vcpus > 1 {
        return Err(DemoError::TooManyVcpus);
    }
    let directory = &arguments.output;
    std::fs::create_dir_all(directory)
        .map_err(|source| OutputError { path: directory.clone(), source })?;
    let image = build(arguments.arch, directory)?;
    let lab = boot(arguments, &image)?;
    let address = profiler_address(&lab, GUEST)?;
    // From here on Ctrl-C ends the recording and keeps it; before, it ends everything.
    let interrupt = Interrupt::default();
    signals::listen(&interrupt).map_err(DemoError::Signals)?;
    let mut images = Images::new(ImageOptions::default());
    images.add_image(&image, Force::No)?;
    let symbolizer = Symbolizer::new(images);
    let recording = record(arguments, address, &symbolizer, interrupt.clone())?;
    show(&recording, &symbolizer, directory)?;
    if arguments.hold && !interrupt.stop() {
        hold(&lab, address, &image, &interrupt)?;
    }
    Ok(())
}

/// Builds the guest and lays its ELF file beside the reports, for later ones.
fn build(processor: Processor, directory: &Path) -> Result<PathBuf, DemoError> {
    // The compiler for aarch64 is among it.
    fill_cache(processor)?;
    eprintln!("building the guest, a unikernel in Rust with the profiler's agent");
    let built = build_xen_guest_for(processor, FEATURES)?;
    let image = directory.join("xen-demo.elf");
    std::fs::copy(built, &image).map_err(|source| OutputError { path: image.clone(), source })?;
    Ok(image)
}

/// Downloads what the lab runs, unless it is there.
fn fill_cache(processor: Processor) -> Result<(), LabError> {
    if !is_downloaded(processor) {
        eprintln!(
            "downloading Xen, a Linux dom0 and QEMU: once, {}",
            match processor {
                Processor::X86_64 => "about 170 MB",
                Processor::Aarch64 => "with a Rust compiler for aarch64, about 420 MB",
            }
        );
        download(processor)?;
    }
    Ok(())
}

fn boot(arguments: &Arguments, image: &Path) -> Result<Lab, DemoError> {
    eprintln!("booting Xen and dom0 in QEMU, then the guest: a quarter of a minute");
    let Arguments { arch, vcpus, load, .. } = arguments;
    let command_line = format!("vcpus={vcpus} load={load} echo={ECHO_PORT}");
    let mut guest = profiled_kernel(image.to_owned(), GUEST, &command_line);
    guest.vcpus = *vcpus;
    guest.ports.push(ECHO_PORT);
    let start = Instant::now();
    let lab = start_profiled(&LabConfig {
        processor: *arch,
        guests: vec![guest],
        // Dom0 has the first.
        processors: Some(2),
        ..LabConfig::default()
    })?;
    eprintln!(
        "the guest runs: domain {} on a real Xen, after {:.0} s",
        lab.domain_id(GUEST)?,
        start.elapsed().as_secs_f64()
    );
    if arguments.vcpus > 1 {
        eprintln!(
            "all {} vCPUs share one emulated processor: most of their time is stolen by the others",
            arguments.vcpus
        );
    }
    Ok(lab)
}

fn record(
    arguments: &Arguments,
    address: SocketAddr,
    symbolizer: &Symbolizer,
    interrupt: Interrupt,
) -> Result<PathBuf, DemoError> {
    let address = Address::new(address.ip().to_string(), address.port());
    let mut session = Session::open(address, Patience::default(), interrupt)?;
    eprintln!(
        "recording the guest for {:?} at {} Hz (Ctrl-C stops early)",
        arguments.duration, arguments.rate
    );
    let settings = Settings {
        name: GUEST.into(),
        period_ns: 1_000_000_000 / u64::from(arguments.rate),
        duration_ns: u64::try_from(arguments.duration.as_nanos()).unwrap_or(u64::MAX),
        callers: caller_table::prepare(symbolizer, session.agent(), Unwind::FramePointers)?.table,
        ..Settings::default()
    };
    let path = arguments.output.join("xen-demo.unikprof");
    let mut progress = ProgressLine::on_stderr();
    let outcome = record::record(&mut session, &settings, &path, &mut progress);
    progress.finish();
    let outcome = outcome?;
    match outcome.incomplete {
        None => Ok(outcome.path),
        Some(reason) => Err(DemoError::Incomplete { path: outcome.path, reason }),
    }
}

/// Writes every report and prints the shortest.
fn show(path: &Path, symbolizer: &Symbolizer, directory: &Path) -> Result<(), DemoError> {
    const FORMATS: [(&str, Format, &str); 4] = [
        (
            "xen-demo.html",
            Format::Page,
            "time tracks, flame graph and tables; open it in a browser",
        ),
        ("xen-demo.txt", Format::Text, "the tables in full"),
        ("xen-demo.pb.gz", Format::Pprof, "for `go tool pprof -http :`"),
        ("xen-demo.folded", Format::Folded, "folded stacks for other flame graph tools"),
    ];
    let recording = Recording::open(path, Reading::Strict)?;
    let symbolized = symbolizer.resolve(&recording.profile)?;
    let brief = ReportOptions { top: TOP, ..ReportOptions::default() };
    let mut screen = Vec::new();
    Report::new(&symbolized, brief)
        .write(Format::Text, &mut screen)
        .map_err(|source| DemoError::Report { path: "-".into(), source })?;
    print(&screen)?;

    let report = Report::new(&symbolized, ReportOptions::default())
        .with_timeline(TimelineView::of(&recording));
    let mut written = format!(
        "\nWritten to {}:\n  {:<18}the recording; all other files are made from it\n",
        directory.display(),
        "xen-demo.unikprof"
    );
    for (name, format, what) in FORMATS {
        write_report(&report, format, &directory.join(name))?;
        // Writing to a string does not fail.
        let _ = writeln!(written, "  {name:<18}{what}");
    }
    let _ = writeln!(
        written,
        "  {:<18}the guest's image, for `unikprof-client report --image`",
        "xen-demo.elf"
    );
    print(written.as_bytes())
}

fn write_report(report: &Report<'_>, format: Format, path: &Path) -> Result<(), DemoError> {
    let mut file = AtomicFile::create(path)?;
    report
        .write(format, &mut file)
        .map_err(|source| DemoError::Report { path: path.into(), source })?;
    Ok(file.publish()?)
}

/// Leaves the guest running until the user has seen enough, or it dies.
fn hold(
    lab: &Lab,
    address: SocketAddr,
    image: &Path,
    interrupt: &Interrupt,
) -> Result<(), DemoError> {
    let echo = lab.forwarded(GUEST, ECHO_PORT).unwrap_or_default();
    let image = image.display();
    print(
        format!(
            "\nThe guest keeps running. Try:\n\
             \x20 unikprof-client connect {address} info\n\
             \x20 unikprof-client connect {address} record 10s --image {image} -o again.svg\n\
             \x20 unikprof-client connect {address} record 10s -F 99 --image {image}\n\
             It echoes what is sent to 127.0.0.1:{echo}.\n\
             Enter or Ctrl-C ends it.\n"
        )
        .as_bytes(),
    )?;
    hold_while(lab, GUEST, interrupt, || Ok(true))
}

/// Leaves the guest running while `look` says so, until the user has seen enough, or it has ended.
fn hold_while(
    lab: &Lab,
    guest: &str,
    interrupt: &Interrupt,
    mut look: impl FnMut() -> Result<bool, DemoError>,
) -> Result<(), DemoError> {
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let entered = enter_pressed();
    while look()? && !interrupt.stop() {
        match lab.wait_for_end(guest, Duration::ZERO) {
            Ok(end) => {
                // Its last words may come after its end.
                thread::sleep(LOOK_EVERY);
                look()?;
                eprintln!("the guest has ended: {end:?}");
                return Ok(());
            }
            Err(LabError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match entered.recv_timeout(LOOK_EVERY) {
            Ok(()) => return Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // There is nobody to press Enter: Ctrl-C is left.
            Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(LOOK_EVERY),
        }
    }
    Ok(())
}

/// Tells when a line comes on standard input; hangs up where none can come.
fn enter_pressed() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        if matches!(io::stdin().lock().read_line(&mut line), Ok(length) if length > 0) {
            // Nobody listens any more when the demo has ended otherwise.
            let _ = sender.send(());
        }
    });
    receiver
}

/// Writes to standard output. A reader that has gone, as in `| head`, is no failure.
fn print(bytes: &[u8]) -> Result<(), DemoError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(DemoError::Stdout(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use unikprof_test_kit::documents;

    use super::*;

    #[test]
    fn commands_in_the_documentation_are_understood() {
        let commands = documents::commands("xen-demo");
        for (line, words) in &commands {
            let words = std::iter::once("xen-demo").chain(words.iter().map(String::as_str));
            if let Err(error) = Arguments::try_parse_from(words) {
                panic!("{line}\n{error}");
            }
        }
        assert!(commands.len() > 3, "{} were found", commands.len());
    }
}
