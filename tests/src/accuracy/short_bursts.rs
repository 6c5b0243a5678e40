//! Case 8: bursts of work that are shorter than the sampling period.
//!
//! The running time left to the next sample is kept while the guest blocks, so bursts add up: there are as
//! many samples as periods of running time. A sampler that drew a new interval at each wake would see none.

use super::error::AccuracyError;
use super::guest::{Guest, settings};
use super::row::{Row, Verdict};

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How many bursts.
    pub bursts: u64,
    /// The running time of each, in ns.
    pub burst_ns: u64,
    /// How often one begins, in ns.
    pub every_ns: u64,
    /// The sampling period, in ns.
    pub period_ns: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// Periods of running time.
    pub expected: f64,
    /// Samples.
    pub recorded: u64,
    /// Ticks that were due within the block call, and are no samples.
    pub idle: u64,
}

impl Bursts {
    /// How many samples there may be more or less: five standard deviations. Steps are uniform with a
    /// variance of a twelfth of a squared period, and so is the variance of their number a twelfth of it;
    /// one sample more for the ends.
    pub fn tolerance(&self) -> f64 {
        5.0 * (self.expected / 12.0).sqrt() + 1.0
    }

    /// Whether as many samples came as there should.
    pub fn is_expected(&self) -> bool {
        ((self.recorded + self.idle) as f64 - self.expected).abs() <= self.tolerance()
    }
}

/// Runs it.
pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Bursts, AccuracyError> {
    let Effort {
        bursts,
        burst_ns,
        every_ns,
        period_ns,
    } = effort;
    let command = format!("bursts count={bursts} burst_ns={burst_ns} every_ns={every_ns}");
    let run = guest.record(&settings(*period_ns), &command)?;
    Ok(Bursts {
        expected: run.truth.total_ns() as f64 / *period_ns as f64,
        recorded: run.counters.recorded,
        idle: run.counters.idle,
    })
}

/// The case's row.
pub fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>, AccuracyError> {
    let found = measure(guest, effort)?;
    Ok(vec![Row {
        case: 8,
        load: format!(
            "{} bursts of {} µs, one each {} µs, sampled each {} µs",
            effort.bursts,
            effort.burst_ns / 1000,
            effort.every_ns / 1000,
            effort.period_ns / 1000
        ),
        truth: format!("{:.0} periods of running time", found.expected),
        said: format!("{} samples, {} idle ticks", found.recorded, found.idle),
        interval: format!("± {:.0}", found.tolerance()),
        naive: None,
        fixed: None,
        verdict: Verdict::of(found.is_expected(), || {
            format!(
                "off by {:.0}",
                (found.recorded + found.idle) as f64 - found.expected
            )
        }),
    }])
}
