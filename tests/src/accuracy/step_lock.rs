//! Case 3: a load in step with the sampler.
//!
//! One function works in the first half of each period, another in the second. Sampled at fixed
//! intervals of the period, each recording sees one half only; sampled at random, both have their
//! share.

use anyhow::Result;
use unikprof_link::record::Settings;
use unikprof_profile::profile::{Interval, Unwind};

use super::guest::{Guest, settings};
use super::row::{Row, Verdict, percent};
use super::statistics::{Coverage, RISK, least_hits};

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Recordings of each load, of each way of sampling.
    pub runs: u32,
    pub run_ns: u64,
    pub period_ns: u64,
}

/// The load's periods in sampling periods: numerator, denominator.
pub const STEPS: [(u64, u64); 4] = [(1, 1), (1, 2), (1, 3), (2, 1)];

/// Recordings of one load with one way of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The true share of the first half.
    pub truth: f64,
    /// The first half's share in all samples together.
    pub shown: Interval,
    /// The stated intervals of each recording.
    pub(crate) coverage: Coverage,
    /// The mean error of single recordings.
    pub(crate) mean_error: f64,
}

/// Runs a load whose period is so many sampling periods.
pub fn measure(
    guest: &mut dyn Guest,
    effort: &Effort,
    (numerator, denominator): (u64, u64),
    fixed_interval: bool,
) -> Result<Sampled> {
    const FIRST: &str = "first_half";
    let settings = Settings {
        fixed_interval,
        // The halves look at the clock all the time, through a C library without frame pointers.
        unwind: Unwind::Table,
        ..settings(effort.period_ns)
    };
    let load_ns = effort.period_ns * numerator / denominator;
    let periods = effort.run_ns / load_ns;
    let command = format!("periodic period_ns={load_ns} periods={periods}");
    let mut coverage = Coverage::default();
    let (mut seen, mut samples, mut ns, mut total_ns, mut errors) = (0, 0, 0, 0, 0.0);
    for _ in 0..effort.runs {
        let run = guest.record(&settings, &command)?;
        let (shown, truth) = (run.total(FIRST), run.truth.share(FIRST));
        coverage.add(&shown.share, truth);
        errors += (shown.share.share - truth).abs();
        seen += shown.samples;
        samples += run.samples;
        ns += run.truth.get(FIRST);
        total_ns += run.truth.total_ns();
    }
    Ok(Sampled {
        truth: ns as f64 / f64::max(total_ns as f64, 1.0),
        shown: Interval::wilson(seen, samples),
        coverage,
        mean_error: errors / f64::from(effort.runs.max(1)),
    })
}

pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for step in STEPS {
        let random = measure(guest, effort, step, false)?;
        let fixed = measure(guest, effort, step, true)?;
        let Coverage { held, stated } = random.coverage;
        let points = |error: f64| format!("single runs off by {:.1} points", error * 100.0);
        rows.push(Row {
            case: 3,
            load: format!("two halves of {}/{} of a sampling period", step.0, step.1),
            truth: format!("first half {}", percent(random.truth)),
            said: format!("{}; {}", percent(random.shown.share), points(random.mean_error)),
            interval: format!(
                "{} to {}; {held} of {stated} runs' intervals hold the truth",
                percent(random.shown.low),
                percent(random.shown.high)
            ),
            fixed: Some(points(fixed.mean_error)),
            verdict: Verdict::of(held >= least_hits(stated, 0.95, RISK), || {
                format!("{held} of {stated} intervals hold the truth")
            }),
            ..Row::default()
        });
    }
    Ok(rows)
}
