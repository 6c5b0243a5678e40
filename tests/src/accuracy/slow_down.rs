//! Case 4: a function that becomes slower.
//!
//! Two recordings, one before and one after; the function's samples against those of a function that has
//! stayed as it was say by how much it became slower. The truth are the same sums by thread CPU clock.

use super::error::AccuracyError;
use super::guest::{Guest, settings};
use super::recorded::Recorded;
use super::row::{Row, Verdict};
use super::statistics::{Factor, Odds, RISK, least_hits};

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Pairs of recordings.
    pub pairs: u32,
    /// The running time of each recording, in ns.
    pub run_ns: u64,
    /// The sampling period, in ns.
    pub period_ns: u64,
}

/// By how much the function becomes slower, in percent.
pub const PERCENTS: [u32; 3] = [10, 50, 100];

/// What came of one slow-down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// By how much the function takes longer.
    pub truth: f64,
    /// What all samples together say of it; `None` where there are none of some kind.
    pub shown: Option<Factor>,
    /// Pairs of recordings whose interval holds their own truth.
    pub held: u64,
    /// All pairs.
    pub pairs: u64,
}

#[derive(Default, Clone, Copy)]
struct Sums {
    samples: [u64; 2],
    ns: [u64; 2],
}

impl Sums {
    const FUNCTIONS: [&str; 2] = ["adjustable", "steady"];

    fn of(run: &Recorded) -> Sums {
        Sums {
            samples: Self::FUNCTIONS.map(|name| run.own(name).samples),
            ns: Self::FUNCTIONS.map(|name| run.truth.get(name)),
        }
    }

    fn plus(self, other: Sums) -> Sums {
        let sum = |a: [u64; 2], b: [u64; 2]| [a[0] + b[0], a[1] + b[1]];
        Sums {
            samples: sum(self.samples, other.samples),
            ns: sum(self.ns, other.ns),
        }
    }

    fn odds(self) -> Odds {
        Odds {
            function: self.samples[0],
            other: self.samples[1],
        }
    }

    /// Of the function's time to the other's.
    fn ratio(self) -> f64 {
        self.ns[0] as f64 / self.ns[1].max(1) as f64
    }
}

/// Runs pairs of recordings: as it was, and slower by `percent`.
///
/// # Errors
/// [`AccuracyError`].
pub fn measure(
    guest: &mut dyn Guest,
    effort: &Effort,
    percent: u32,
) -> Result<Moved, AccuracyError> {
    let settings = settings(effort.period_ns);
    let mut run = |percent| {
        let command = format!("slowdown percent={percent} ns={}", effort.run_ns);
        Ok::<_, AccuracyError>(Sums::of(&guest.record(&settings, &command)?))
    };
    let (mut all_before, mut all_after) = (Sums::default(), Sums::default());
    let mut held = 0;
    for _ in 0..effort.pairs {
        let (before, after) = (run(0)?, run(percent)?);
        let truth = after.ratio() / before.ratio();
        let shown = Factor::of_odds(before.odds(), after.odds());
        held += u64::from(shown.is_some_and(|shown| shown.holds(truth)));
        all_before = all_before.plus(before);
        all_after = all_after.plus(after);
    }
    Ok(Moved {
        truth: all_after.ratio() / all_before.ratio(),
        shown: Factor::of_odds(all_before.odds(), all_after.odds()),
        held,
        pairs: u64::from(effort.pairs),
    })
}

/// The case's rows, one a slow-down.
///
/// # Errors
/// [`AccuracyError`].
pub fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>, AccuracyError> {
    let mut rows = Vec::new();
    for percent in PERCENTS {
        let Moved {
            truth,
            shown,
            held,
            pairs,
        } = measure(guest, effort, percent)?;
        let (said, interval) = shown.map_or_else(Default::default, |shown| {
            (
                format!("{:.3} ×", shown.factor),
                format!("{:.3} to {:.3}", shown.low, shown.high),
            )
        });
        rows.push(Row {
            case: 4,
            load: format!("a function slower by {percent} %"),
            truth: format!("{truth:.3} ×"),
            said,
            interval: format!("{interval}; {held} of {pairs} pairs' intervals hold the truth"),
            naive: None,
            fixed: None,
            verdict: Verdict::of(held >= least_hits(pairs, 0.95, RISK), || {
                format!("{held} of {pairs} intervals hold the truth")
            }),
        });
    }
    Ok(rows)
}
