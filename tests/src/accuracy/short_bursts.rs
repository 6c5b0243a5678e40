//! Case 8: bursts of work that are shorter than the sampling period.
//!
//! The running time left to the next sample is kept while the guest blocks, so bursts add up: there
//! are as many samples as periods of running time. A sampler that drew a new interval at each wake
//! would see none.

use anyhow::Result;
use unikprof_accuracy_loads::bursts::FUNCTION;

use super::guest::{Guest, settings};
use super::row::{Row, Verdict};

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub bursts: u64,
    pub burst_ns: u64,
    /// The period of the bursts, in ns.
    pub every_ns: u64,
    pub period_ns: u64,
}

/// The result of the case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// Periods of running time in the bursts, without the gaps.
    pub in_bursts: f64,
    /// Periods of all running time without the gaps: also before and after each wait, in the system
    /// below.
    pub in_all: f64,
    /// Gaps of more than half a period in the running time: the machine below ran something else
    /// and did not say so, and delivered no timer.
    pub gaps: u64,
    pub recorded: u64,
    /// Ticks that were due within the block call, and are no samples.
    pub idle: u64,
}

impl Bursts {
    /// The allowed error of the number of samples: five standard deviations. Steps are uniform with
    /// a variance of a twelfth of a squared period, and so is the variance of their number a
    /// twelfth of it; one sample more for the ends, and one for each gap, as a tick that was due in
    /// it is delivered after it.
    pub fn tolerance(&self) -> f64 {
        5.0 * (self.in_all / 12.0).sqrt() + 1.0 + self.gaps as f64
    }

    /// The number of samples that are too many, or, if negative, too few: at least those of the
    /// bursts, at most those of all running time.
    pub fn off(&self) -> f64 {
        let ticks = (self.recorded + self.idle) as f64;
        let (least, most) = (self.in_bursts - self.tolerance(), self.in_all + self.tolerance());
        (ticks - most).max(0.0) + (ticks - least).min(0.0)
    }
}

pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Bursts> {
    let Effort { bursts, burst_ns, every_ns, period_ns } = effort;
    let command = format!(
        "bursts count={bursts} burst_ns={burst_ns} every_ns={every_ns} gap_ns={}",
        period_ns / 2
    );
    let run = guest.record(&settings(*period_ns), &command)?;
    let gap_ns = run.truth.get("gap_ns");
    let periods = |ns: u64| ns.saturating_sub(gap_ns) as f64 / *period_ns as f64;
    Ok(Bursts {
        in_bursts: periods(run.truth.get(FUNCTION)),
        in_all: periods(run.truth.total_ns()),
        gaps: run.truth.get("gaps"),
        recorded: run.counters.recorded,
        idle: run.counters.idle,
    })
}

pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
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
        truth: format!(
            "{:.0} periods of running time in the bursts, {:.0} in all, {} gaps",
            found.in_bursts, found.in_all, found.gaps
        ),
        said: format!("{} samples, {} idle ticks", found.recorded, found.idle),
        interval: format!("± {:.0}", found.tolerance()),
        verdict: Verdict::of(found.off() == 0.0, || format!("off by {:.0}", found.off())),
        ..Row::default()
    }])
}
