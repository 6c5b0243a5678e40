//! Case 1: a dozen functions with known shares of the running time.
//!
//! Each run is a recording of its own, and states an interval for each function's share. The truth
//! is the function's CPU time around its calls, of all that the thread ran. Of intervals that say
//! 95 %, 95 % should hold it.

use anyhow::Result;
use std::iter;

use unikprof_accuracy_loads::shares::FUNCTIONS;
use unikprof_profile::profile::Interval;

use super::guest::{Guest, settings};
use super::row::{Row, Verdict, percent};
use super::statistics::{Coverage, Errors};

/// The part of the stated intervals that must hold the truth.
pub const GOAL: f64 = 0.93;

/// The largest allowed error of a function with all runs together, in standard deviations: one of
/// the twelve is beyond it in one of 1,000 runs of the suite.
pub const DEVIATIONS: f64 = 3.93;

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub runs: u32,
    pub run_ns: u64,
    pub period_ns: u64,
}

/// The result of the case.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// The stated intervals of all functions and runs.
    pub coverage: Coverage,
    pub too_wide: u64,
    /// Each function in all runs together.
    pub functions: Vec<Pooled>,
    pub(crate) samples: u64,
}

/// A function in all runs together.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooled {
    pub(crate) name: &'static str,
    pub truth: f64,
    /// Its share of all runs' samples.
    pub shown: Interval,
    /// The errors of its counts against those expected.
    pub errors: Errors,
}

pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Shares> {
    let settings = settings(effort.period_ns);
    let mut coverage = Coverage::default();
    let (mut samples, mut total_ns) = (0, 0);
    let mut too_wide = 0;
    let mut sums = [(0, 0, Errors::default()); FUNCTIONS.len()];
    for _ in 0..effort.runs {
        let run = guest.record(&settings, &format!("shares ns={}", effort.run_ns))?;
        for ((name, _), (seen, ns, errors)) in FUNCTIONS.iter().zip(&mut sums) {
            let (shown, truth) = (run.own(name), run.truth.share(name));
            coverage.add(&shown.share, truth);
            too_wide += u64::from(run.is_too_wide(&shown));
            errors.add(shown.samples, run.samples, truth);
            *seen += shown.samples;
            *ns += run.truth.get(name);
        }
        samples += run.samples;
        total_ns += run.truth.total_ns();
    }
    let functions = FUNCTIONS.iter().zip(sums);
    let functions = functions.map(|((name, _), (seen, ns, errors))| Pooled {
        name,
        truth: ns as f64 / f64::max(total_ns as f64, 1.0),
        shown: Interval::wilson(seen, samples),
        errors,
    });
    Ok(Shares { coverage, too_wide, functions: functions.collect(), samples })
}

/// The case's rows: the coverage, then each function over all runs.
pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let shares = measure(guest, effort)?;
    let Coverage { held, stated } = shares.coverage;
    let too_wide = shares.too_wide;
    let found = shares.coverage.share();
    let coverage = Row {
        case: 1,
        load: format!("{} functions, {} runs", FUNCTIONS.len(), effort.runs),
        truth: format!("{stated} shares by thread CPU clock"),
        said: format!("{held} intervals hold it: {}", percent(found)),
        interval: format!("at least {}, and none too wide", percent(GOAL)),
        verdict: Verdict::of(found >= GOAL && too_wide == 0, || {
            format!("{}; {too_wide} are too wide", percent(found))
        }),
        ..Row::default()
    };
    Ok(table(coverage, &shares.functions))
}

/// The row of the coverage, then one for each function.
pub(crate) fn table(coverage: Row, functions: &[Pooled]) -> Vec<Row> {
    let rows = functions.iter().map(Pooled::row);
    iter::once(coverage).chain(rows).collect()
}

impl Pooled {
    /// It is to be as near to the truth as chance allows.
    fn row(&self) -> Row {
        let off = self.errors.deviations().abs();
        Row {
            case: 1,
            load: format!("`{}`, all runs together", self.name),
            truth: percent(self.truth),
            said: percent(self.shown.share),
            interval: format!(
                "{} to {}; {off:.1} deviations off, design effect {:.2}",
                percent(self.shown.low),
                percent(self.shown.high),
                self.errors.design_effect()
            ),
            verdict: Verdict::of(off <= DEVIATIONS, || format!("{off:.1} deviations")),
            ..Row::default()
        }
    }
}
