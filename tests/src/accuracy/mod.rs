//! The accuracy suite: loads whose truth is known, beside what a profile says of them.

pub mod capture;
pub mod error;
pub mod guest;
pub mod hosted;
pub mod images;
pub mod judge;
pub mod known_shares;
pub mod leaf_callers;
pub mod recorded;
pub mod row;
pub mod statistics;
pub mod truth;

use std::process::ExitCode;

use clap::Parser;

use error::AccuracyError;
use guest::Guest;
use hosted::{FramePointers, HostedGuest};
use row::{HEADING, Row, Verdict};

/// Runs loads whose truth is known and prints a row for each: what is true, and what a profile says.
///
/// Hosted it takes some ten minutes, best on a machine with nothing else to do.
#[derive(Debug, Parser)]
#[command(name = "accuracy")]
struct Arguments {
    /// The cases to run, by number; all where none is named
    cases: Vec<u8>,
}

/// Runs the program with the arguments of this process; fails where a goal was missed.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("{missed} rows missed their goal");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a case does with a guest.
type Case = fn(&mut dyn Guest) -> Result<Vec<Row>, AccuracyError>;

/// The hosted cases, by their numbers.
const CASES: [(u8, Case); 2] = [
    (1, |guest| {
        let effort = known_shares::Effort {
            runs: 100,
            run_ns: 1_000_000_000,
            period_ns: 1_003_009,
        };
        known_shares::rows(guest, &effort)
    }),
    (2, |guest| leaf_callers::rows(guest, 20_000)),
];

/// Prints the table; answers how many rows missed their goal.
fn run(arguments: &Arguments) -> Result<usize, AccuracyError> {
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
