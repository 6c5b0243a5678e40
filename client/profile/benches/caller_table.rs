//! Compiling a caller table: that of this program, which is a real one of some size.
//!
//!     cargo bench -p unikprof-profile --bench caller_table
//!
//! Prints the median of many runs of each step. Nothing is asserted.

use std::env;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use unikprof_profile::caller_table::ImageTable;
use unikprof_profile::symbols::Image;

fn main() -> Result<(), Box<dyn Error>> {
    let image = Image::open(&env::current_exe()?)?;
    let table = ImageTable::compile(&image, &[])?;
    let (rows, functions) = (table.rows()?.len(), table.tally().functions);
    let compiled = median(|| ImageTable::compile(&image, &[]));
    println!("compile {functions} functions: {compiled:?}");
    let written = median(|| table.to_file());
    println!("write {rows} rows: {written:?}");
    Ok(())
}

/// The median duration of a step.
fn median<T>(step: impl Fn() -> T) -> Duration {
    const RUNS: usize = 201;
    let run = |_| {
        let start = Instant::now();
        black_box(step());
        start.elapsed()
    };
    let mut durations: Vec<Duration> = (0..RUNS).map(run).collect();
    durations.sort_unstable();
    durations[RUNS / 2]
}
