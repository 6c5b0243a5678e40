//! Case 4: a function that becomes slower.
//!
//! Two recordings, one before and one after; the function's samples against those of a function
//! that has stayed as it was say by how much it became slower. The truth are the same sums by
//! thread CPU clock.

use super::guest::{Guest, settings};
use super::recorded::Recorded;
use super::row::{Row, Verdict, percent};
use super::statistics::{Factor, Odds, Pooled, RISK, least_hits};
use anyhow::Result;

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub pairs: u32,
    pub run_ns: u64,
    pub period_ns: u64,
}

/// The slow-downs of the function, in percent.
pub(crate) const PERCENTS: [u32; 3] = [10, 50, 100];

/// The result of one slow-down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// The factor by which the function's time grows.
    pub truth: f64,
    /// Pairs of recordings whose interval holds their own truth.
    pub(crate) held: u64,
    pub(crate) pairs: u64,
    /// All pairs together, each beside its own truth; `None` where some have no samples of some
    /// kind.
    pub(crate) pooled: Option<Pooled>,
}

/// The largest half width of the interval of all pairs together: wider, it would tell nothing.
pub(crate) const WIDEST: f64 = 0.1;

#[derive(Clone, Copy)]
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

    fn odds(self) -> Odds {
        Odds { function: self.samples[0], other: self.samples[1] }
    }

    /// The function's time as a part of the other's.
    fn ratio(self) -> f64 {
        self.ns[0] as f64 / self.ns[1].max(1) as f64
    }
}

/// Runs pairs of recordings: as it was, and slower by `percent`.
pub fn measure(guest: &mut dyn Guest, effort: &Effort, percent: u32) -> Result<Moved> {
    let settings = settings(effort.period_ns);
    let mut run = |percent| {
        let command = format!("slowdown percent={percent} ns={}", effort.run_ns);
        anyhow::Ok(Sums::of(&guest.record(&settings, &command)?))
    };
    let mut factors = Vec::new();
    let mut logarithms = 0.0;
    for _ in 0..effort.pairs {
        let (before, after) = (run(0)?, run(percent)?);
        let truth = after.ratio() / before.ratio();
        logarithms += truth.ln();
        let shown = Factor::of_odds(before.odds(), after.odds());
        factors.extend(shown.map(|shown| (shown, truth)));
    }
    let pairs = u64::from(effort.pairs);
    let held = factors.iter().filter(|(shown, truth)| shown.holds(*truth));
    Ok(Moved {
        truth: (logarithms / f64::from(effort.pairs)).exp(),
        held: held.count() as u64,
        pairs,
        pooled: Pooled::of(&factors).filter(|pooled| pooled.count == pairs),
    })
}

impl Moved {
    /// The factor that all pairs together show.
    pub fn shown(&self) -> Option<Factor> {
        let Factor { factor, low, high } = self.pooled?.error;
        let times = |error: f64| error * self.truth;
        Some(Factor { factor: times(factor), low: times(low), high: times(high) })
    }

    /// The reason why the goal was missed, if it was.
    pub(crate) fn fault(&self) -> Option<String> {
        let Moved { held, pairs, .. } = self;
        let Some(pooled) = self.pooled else {
            return Some("some recordings have no samples of a function".into());
        };
        if *held < least_hits(*pairs, 0.95, RISK) {
            return Some(format!("{held} of {pairs} intervals hold the truth"));
        }
        if !pooled.is_sound() {
            return Some(format!(
                "all pairs together are {:.1} deviations off, with a design effect of {:.2}",
                pooled.error.deviations_from(1.0),
                pooled.design_effect
            ));
        }
        let width = pooled.error.high / pooled.error.factor - 1.0;
        (width > WIDEST).then(|| format!("the interval is ± {}", percent(width)))
    }
}

pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for percent in PERCENTS {
        let found = measure(guest, effort, percent)?;
        let Moved { truth, held, pairs, .. } = found;
        let (said, interval) = found.shown().map_or_else(Default::default, |shown| {
            (format!("{:.3} ×", shown.factor), format!("{:.3} to {:.3}; ", shown.low, shown.high))
        });
        let scatter = found.pooled.map_or_else(String::new, |pooled| {
            format!(", design effect {:.2}", pooled.design_effect)
        });
        rows.push(Row {
            case: 4,
            load: format!("a function slower by {percent} %"),
            truth: format!("{truth:.3} ×"),
            said,
            interval: format!(
                "{interval}{held} of {pairs} pairs' intervals hold the truth{scatter}"
            ),
            verdict: found.fault().map_or(Verdict::Met, Verdict::Missed),
            ..Row::default()
        });
    }
    Ok(rows)
}
