//! A recording of a million distinct stacks, to a flame graph and to pprof: seconds and peak
//! memory of each step.
//!
//!     cargo bench -p unikprof-report --bench report_million
//!
//! Each format runs in a process of its own, so that its peak is its own. Nothing is asserted.

mod million;

use std::env;
use std::io::{self, Write};
use std::process::Command;
use std::time::Instant;

use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Format, Report, ReportOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo adds `--bench`.
    let format = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    match format {
        Some(name) => measure(name.parse()?),
        None => {
            for format in Format::all() {
                let status = Command::new(env::current_exe()?).arg(format.name()).status()?;
                if !status.success() {
                    return Err(format!("{format}: {status}").into());
                }
            }
            Ok(())
        }
    }
}

fn measure(format: Format) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let profile = million::profile(1_000_000, 20_000)?;
    let built = start.elapsed();
    let built_peak = peak_megabytes();

    let names = million::names(20_000)?;
    let start = Instant::now();
    let mut images = Images::new(ImageOptions {
        debug_dirs: Vec::new(),
        open_recorded_paths: false,
        ..ImageOptions::default()
    });
    images.add_symbols(names.path())?;
    let symbolized = Symbolizer::new(images).resolve(&profile)?;
    let named = start.elapsed();

    let start = Instant::now();
    let report = Report::new(&symbolized, ReportOptions::default());
    let mut out = Counter::default();
    report.write(format, &mut out)?;
    let written = start.elapsed();
    if let Some(path) = env::var_os("UNIKPROF_BENCH_OUT") {
        report.write(format, &mut std::fs::File::create(path)?)?;
    }
    println!(
        "{format:<7} {:.2} s, {:.1} MB written, peak {} MB ({} MB with the profile alone); \
         {} stacks, {} nodes, {} addresses: built in {:.2} s, named in {:.2} s",
        written.as_secs_f64(),
        out.0 as f64 / 1e6,
        peak_megabytes(),
        built_peak,
        profile.samples().len(),
        profile.tree().node_count(),
        profile.frames().len(),
        built.as_secs_f64(),
        named.as_secs_f64(),
    );
    Ok(())
}

/// Takes bytes and counts them.
#[derive(Default)]
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest resident size of this process so far; zero where /proc does not tell.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes / 1024)
}
