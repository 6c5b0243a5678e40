//! Case 1 in the emulator.
//!
//! The emulator stops now and then for some milliseconds. That is running time of the function it
//! happens in, which no sample can show: the next one is late, and marked so. One run's clock would
//! hold it against the function; over all runs it falls on the functions by their shares. So shares
//! are those of the dozen functions among themselves, and the truth is that of all runs.

use anyhow::Result;
use unikprof_accuracy_loads::shares::{COUNT, FUNCTIONS};
use unikprof_profile::profile::Interval;

use crate::accuracy::guest::{Guest, settings};
use crate::accuracy::known_shares::{Effort, GOAL, Pooled, table};
use crate::accuracy::recorded::Recorded;
use crate::accuracy::row::{Row, Verdict, percent};
use crate::accuracy::statistics::{Coverage, Errors};

/// The result of the case.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// The intervals of all functions and runs.
    pub coverage: Coverage,
    /// Each function in all runs together.
    pub functions: [Pooled; COUNT],
}

/// The functions' samples among themselves.
pub(crate) fn among_themselves(run: &Recorded) -> [Interval; COUNT] {
    intervals(&FUNCTIONS.map(|(name, _)| run.own(name).samples))
}

fn intervals(samples: &[u64; COUNT]) -> [Interval; COUNT] {
    let all = samples.iter().sum();
    samples.map(|samples| Interval::wilson(samples, all))
}

/// Runs the load so often, and pools its recordings.
pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Shares> {
    let settings = settings(effort.period_ns);
    let command = format!("shares ns={}", effort.run_ns);
    let mut runs = Vec::new();
    let (mut samples, mut ns) = ([0; COUNT], [0; COUNT]);
    for _ in 0..effort.runs {
        let run = guest.record(&settings, &command)?;
        for (number, (name, _)) in FUNCTIONS.iter().enumerate() {
            samples[number] += run.own(name).samples;
            ns[number] += run.truth.get(name);
        }
        runs.push(FUNCTIONS.map(|(name, _)| run.own(name).samples));
    }
    let all_ns = ns.iter().sum::<u64>().max(1) as f64;
    let truth = ns.map(|ns| ns as f64 / all_ns);
    let mut coverage = Coverage::default();
    let mut errors = [Errors::default(); COUNT];
    for run in &runs {
        let all = run.iter().sum();
        for (at, interval) in intervals(run).iter().enumerate() {
            coverage.add(interval, truth[at]);
            errors[at].add(run[at], all, truth[at]);
        }
    }
    let shown = intervals(&samples);
    Ok(Shares {
        coverage,
        functions: std::array::from_fn(|at| Pooled {
            name: FUNCTIONS[at].0,
            truth: truth[at],
            shown: shown[at],
            errors: errors[at],
        }),
    })
}

/// The case's rows: the coverage, then each function over all runs.
pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let shares = measure(guest, effort)?;
    let Coverage { held, stated } = shares.coverage;
    let found = shares.coverage.share();
    let coverage = Row {
        case: 1,
        load: format!(
            "{COUNT} functions, {} runs of {} s, sampled each {} ms",
            effort.runs,
            effort.run_ns as f64 / 1e9,
            effort.period_ns as f64 / 1e6
        ),
        truth: format!("{stated} shares by the vCPU's running time"),
        said: format!("{held} intervals hold it: {}", percent(found)),
        interval: format!("at least {}", percent(GOAL)),
        verdict: Verdict::of(found >= GOAL, || percent(found)),
        ..Row::default()
    };
    Ok(table(coverage, &shares.functions))
}
