//! The accuracy suite: loads whose truth is known, beside what a profile says of them.

pub mod blocking;
pub mod broken_chains;
pub(crate) mod capture;
pub(crate) mod guest;
pub mod hosted;
pub(crate) mod images;
pub(crate) mod judge;
pub mod known_shares;
pub mod leaf_callers;
pub mod masked_events;
pub mod overhead;
pub(crate) mod recorded;
pub(crate) mod row;
pub mod several_recordings;
pub mod short_bursts;
pub mod slow_down;
pub mod statistics;
pub mod step_lock;
pub(crate) mod truth;
pub mod without_frame_pointers;
pub mod xen;

use anyhow::Result;
use std::process::ExitCode;

use clap::Parser;
use unikprof_accuracy_loads::leaves::LOADS;

use hosted::{FramePointers, HostedGuest};
use row::{HEADING, Row, Verdict};

/// Runs loads whose truth is known and prints a row for each: what is true, and what a profile
/// says.
///
/// Hosted it takes some ten minutes, best on a machine with nothing else to do.
#[derive(Debug, Parser)]
#[command(name = "accuracy")]
struct Arguments {
    /// The cases to run, by number; all where none is named
    cases: Vec<u8>,
    /// Run them on a real Xen, in an emulated machine
    #[arg(long)]
    xen: bool,
}

/// Runs the program with the arguments of this process; fails where a goal was missed.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("{missed} rows missed their goal");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A case, which measures a guest.
type Case = fn(&mut HostedGuest) -> Result<Vec<Row>>;

const CASES: [(u8, Case); 11] = [
    (1, |guest| {
        let effort = known_shares::Effort { runs: 100, run_ns: SECOND / 2, period_ns: PERIOD_NS };
        known_shares::rows(guest, &effort)
    }),
    (2, |guest| leaf_callers::rows(guest, 20_000)),
    (3, |guest| {
        let effort = step_lock::Effort { runs: 20, run_ns: SECOND / 2, period_ns: 1_000_000 };
        step_lock::rows(guest, &effort)
    }),
    (4, |guest| {
        let effort = slow_down::Effort { pairs: 40, run_ns: SECOND / 2, period_ns: PERIOD_NS };
        slow_down::rows(guest, &effort)
    }),
    (6, |guest| {
        let effort = masked_events::Effort {
            stretches: 500,
            masked_ns: 5_000_000,
            open_ns: 5_000_000,
            period_ns: PERIOD_NS,
        };
        masked_events::rows(guest, &effort, masked_events::CHARGED_PERCENT)
    }),
    (7, |guest| {
        let effort = blocking::Effort { waits: 500, timer_ns: 10_000_000, network_ns: 7_000_000 };
        blocking::rows(guest, &effort)
    }),
    (8, |guest| {
        let effort = short_bursts::Effort {
            bursts: 20_000,
            burst_ns: 300_000,
            every_ns: 1_000_000,
            period_ns: 1_000_000,
        };
        short_bursts::rows(guest, &effort)
    }),
    (9, |guest| {
        let mixed = "Rust below two C functions without frame pointers";
        let mut rows = vec![without_frame_pointers::row(guest, mixed, "frameless", 20_000)?];
        let mut whole = HostedGuest::start(FramePointers::Omitted)?;
        for load in LOADS.map(|load| load.name) {
            let what = format!("no frame pointers at all: {load}");
            rows.push(without_frame_pointers::row(&mut whole, &what, load, 20_000)?);
        }
        let outermost = "accuracy_guest::main";
        rows.push(without_frame_pointers::recorded_row(&mut whole, outermost, SECOND)?);
        Ok(rows)
    }),
    (10, |guest| {
        let effort = broken_chains::Effort { run_ns: 2 * SECOND, period_ns: PERIOD_NS };
        broken_chains::rows(guest, &effort)
    }),
    (11, |guest| several_recordings::rows(guest, 10 * SECOND)),
    (12, |guest| {
        let effort = |rate_hz| overhead::Effort { pairs: 60, run_ns: SECOND / 10, rate_hz };
        [997, 8_000].into_iter().map(|rate_hz| overhead::row(guest, &effort(rate_hz))).collect()
    }),
];

const SECOND: u64 = 1_000_000_000;

/// The client's own: 997 Hz.
const PERIOD_NS: u64 = 1_003_009;

/// Prints the table; answers how many rows missed their goal.
fn run(arguments: &Arguments) -> Result<usize> {
    if arguments.xen {
        return xen::run(&arguments.cases);
    }
    let mut guest = HostedGuest::start(FramePointers::Kept)?;
    let mut missed = 0;
    println!("{HEADING}");
    for (case, run) in CASES {
        if !arguments.cases.is_empty() && !arguments.cases.contains(&case) {
            continue;
        }
        for row in run(&mut guest)? {
            println!("{row}");
            missed += usize::from(matches!(row.verdict, Verdict::Missed(_)));
        }
    }
    Ok(missed)
}
