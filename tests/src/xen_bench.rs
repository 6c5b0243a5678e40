//! `xen-bench`: what sampling costs a guest on a real Xen, beside xenctx in dom0.
//!
//! Everything runs in an emulated machine: figures of one run are ratios to each other, not those
//! of hardware.

mod beside_xenctx;
mod download;
mod rig;
pub mod size;
mod ticks;
mod timers;

use anyhow::Result;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Measures what sampling costs a unikernel on a real Xen in an emulated machine, beside xenctx in
/// dom0.
///
/// Prints tables in Markdown. Without a section it does all of them, in some five minutes.
#[derive(Debug, Parser)]
#[command(name = "xen-bench")]
struct Arguments {
    /// The sections to measure
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// Turns of each load, beside xenctx and for the timers
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
    /// Duration of a turn
    #[arg(
        long, value_name = "TIME", default_value = "4s",
        value_parser = unikprof_lab::parse_duration
    )]
    turn: Duration,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Cycles of a tick from the upcall's entry to its return
    Ticks,
    /// A tick by the local APIC's timer beside one by VIRQ_TIMER
    Timers,
    /// Stall and throughput beside xenctx
    Xenctx,
    /// Time from `stop` to the file on disk
    Download,
    /// Bytes that the agent adds to a guest
    Size,
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |section| arguments.sections.is_empty() || arguments.sections.contains(&section);
    if wanted(Section::Size) {
        print!("{}", size::measure()?);
    }
    if wanted(Section::Ticks) {
        print!("{}", ticks::measure(arguments.turn)?);
    }
    if wanted(Section::Timers) {
        print!("{}", timers::measure(arguments.rounds, arguments.turn)?);
    }
    if wanted(Section::Xenctx) {
        print!("{}", beside_xenctx::measure(arguments.rounds, arguments.turn)?);
    }
    if wanted(Section::Download) {
        print!("{}", download::measure()?);
    }
    Ok(())
}
