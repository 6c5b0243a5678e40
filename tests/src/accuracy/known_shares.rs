//! Case 1: a dozen functions with known shares of the running time.
//!
//! Each run is a recording of its own, and states an interval for each function's share. The truth is the
//! function's CPU time around its calls, of all that the thread ran. Of intervals that say 95 %, 95 % should
//! hold it.

use unikprof_accuracy_loads::shares::FUNCTIONS;
use unikprof_client::report::Interval;

use super::error::AccuracyError;
use super::guest::{Guest, settings};
use super::row::{Row, Verdict, percent};
use super::statistics::Coverage;

/// The part of the stated intervals that must hold the truth.
pub const GOAL: f64 = 0.93;

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Runs, each a recording.
    pub runs: u32,
    /// The running time of each, in ns.
    pub run_ns: u64,
    /// The sampling period, in ns.
    pub period_ns: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// The stated intervals of all functions and runs.
    pub coverage: Coverage,
    /// Each function: its name, its true share and that of all runs' samples together.
    pub functions: Vec<(&'static str, f64, Interval)>,
    /// The samples of all runs.
    pub samples: u64,
}

/// Runs it.
///
/// # Errors
/// [`AccuracyError`].
pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Shares, AccuracyError> {
    let settings = settings(effort.period_ns);
    let mut coverage = Coverage::default();
    let (mut samples, mut total_ns) = (0, 0);
    let mut sums = [(0, 0); FUNCTIONS.len()];
    for _ in 0..effort.runs {
        let run = guest.record(&settings, &format!("shares ns={}", effort.run_ns))?;
        for ((name, _), (seen, ns)) in FUNCTIONS.iter().zip(&mut sums) {
            let shown = run.own(name);
            coverage.add(&shown.share, run.truth.share(name));
            *seen += shown.samples;
            *ns += run.truth.get(name);
        }
        samples += run.samples;
        total_ns += run.truth.total_ns();
    }
    let functions = FUNCTIONS.iter().zip(sums).map(|((name, _), (seen, ns))| {
        let truth = ns as f64 / f64::max(total_ns as f64, 1.0);
        (*name, truth, Interval::wilson(seen, samples))
    });
    Ok(Shares {
        coverage,
        functions: functions.collect(),
        samples,
    })
}

/// The case's rows: the coverage, then each function over all runs.
///
/// # Errors
/// [`AccuracyError`].
pub fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>, AccuracyError> {
    let shares = measure(guest, effort)?;
    let Coverage { held, stated } = shares.coverage;
    let found = shares.coverage.share();
    let row = |load: String, truth, said, interval, verdict| Row {
        case: 1,
        load,
        truth,
        said,
        interval,
        naive: None,
        fixed: None,
        verdict,
    };
    let mut rows = vec![row(
        format!("{} functions, {} runs", FUNCTIONS.len(), effort.runs),
        format!("{stated} shares by thread CPU clock"),
        format!("{held} intervals hold it: {}", percent(found)),
        format!("at least {}", percent(GOAL)),
        Verdict::of(found >= GOAL, || percent(found)),
    )];
    rows.extend(shares.functions.into_iter().map(|(name, truth, shown)| {
        row(
            format!("`{name}`, all runs together"),
            percent(truth),
            percent(shown.share),
            format!("{} to {}", percent(shown.low), percent(shown.high)),
            Verdict::Beside,
        )
    }));
    Ok(rows)
}
