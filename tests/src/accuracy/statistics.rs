//! The statistics by which runs are judged. Shares have the client's own intervals:
//! [`Interval::wilson`].

use unikprof_client::report::Interval;

/// How many standard deviations hold 95 % of a normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// How seldom a sound case may miss its bound where that is one of chance: a thousand runs of the suite.
pub const RISK: f64 = 0.001;

/// How often intervals hold the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Intervals that held it.
    pub held: u64,
    /// All of them.
    pub stated: u64,
}

impl Coverage {
    /// Counts one interval.
    pub fn add(&mut self, interval: &Interval, truth: f64) {
        self.stated += 1;
        self.held += u64::from(holds(interval, truth));
    }

    /// The part of the intervals that held the truth; 0 where there were none.
    pub fn share(&self) -> f64 {
        self.held as f64 / self.stated.max(1) as f64
    }
}

/// Whether the truth lies inside.
pub fn holds(interval: &Interval, truth: f64) -> bool {
    (interval.low..=interval.high).contains(&truth)
}

/// A factor with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor {
    /// The factor.
    pub factor: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Samples in a function and in what it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Odds {
    /// Samples in the function.
    pub function: u64,
    /// Samples in the other.
    pub other: u64,
}

impl Factor {
    /// By how much the function takes longer `after` than `before`, the other staying as it is: the
    /// ratio of odds, with B. Woolf's interval (1955): the logarithm's variance is the sum of the
    /// reciprocal counts. `None` where a count is 0.
    pub fn of_odds(before: Odds, after: Odds) -> Option<Factor> {
        let counts = [before.function, before.other, after.function, after.other];
        if counts.contains(&0) {
            return None;
        }
        let [a, b, c, d] = counts.map(|count| count as f64);
        let factor = (c / d) / (a / b);
        let spread = (Z * (1.0 / a + 1.0 / b + 1.0 / c + 1.0 / d).sqrt()).exp();
        Some(Factor {
            factor,
            low: factor / spread,
            high: factor * spread,
        })
    }

    /// Whether the truth lies inside.
    pub fn holds(&self, truth: f64) -> bool {
        (self.low..=self.high).contains(&truth)
    }

    /// Whether it lies within so many standard deviations, and not only within the interval's 1.96.
    pub fn is_within(&self, deviations: f64, truth: f64) -> bool {
        let deviation = (self.high / self.low).ln() / (2.0 * Z);
        (truth / self.factor).ln().abs() <= deviations * deviation
    }
}

/// The greatest number of hits that `trials`, each a hit with this probability, stay below with at most the
/// given `risk`: a bound that a sound run misses that seldom.
pub fn least_hits(trials: u64, probability: f64, risk: f64) -> u64 {
    if probability <= 0.0 {
        return 0;
    }
    if probability >= 1.0 {
        return trials;
    }
    let odds = (probability / (1.0 - probability)).ln();
    // The logarithm of each term, since the first are too small for a number of their own.
    let mut term = trials as f64 * (1.0 - probability).ln();
    let mut below = 0.0;
    for hits in 0..trials {
        below += term.exp();
        if below > risk {
            return hits;
        }
        term += ((trials - hits) as f64 / (hits + 1) as f64).ln() + odds;
    }
    trials
}

/// The mean and the standard deviation of some values; 0 where there are too few.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn coverage_counts_what_lies_inside() {
        let mut coverage = Coverage::default();
        let interval = Interval::wilson(50, 100);
        for truth in [0.5, interval.low, interval.high, 0.2, 0.8] {
            coverage.add(&interval, truth);
        }
        assert_eq!(coverage, Coverage { held: 3, stated: 5 });
        assert!((coverage.share() - 0.6).abs() < 1e-12);
        assert!(Coverage::default().share().abs() < 1e-12);
    }

    /// The example of a 2 × 2 table in Woolf's method: 10/20 against 30/20 is a factor of 3.
    #[test]
    fn a_ratio_of_odds_has_its_interval() {
        let odds = |function, other| Odds { function, other };
        let found = Factor::of_odds(odds(10, 20), odds(30, 20)).unwrap();
        assert!((found.factor - 3.0).abs() < 1e-12);
        // 3 divided and multiplied by exp(1.96 √(1/10 + 1/20 + 1/30 + 1/20)) = 2.5773.
        assert!((found.low - 1.1640).abs() < 1e-3, "{found:?}");
        assert!((found.high - 7.7320).abs() < 1e-3, "{found:?}");
        assert!(found.holds(2.0) && !found.holds(1.0));
        assert!(found.is_within(1.97, found.low) && !found.is_within(1.95, found.low));
        assert_eq!(Factor::of_odds(odds(0, 1), odds(1, 1)), None);
    }

    /// Against tables of the binomial distribution.
    #[test]
    fn a_bound_is_missed_as_seldom_as_asked() {
        // P(X ≤ 1) of 20 at 0.2 is 0.0692, P(X ≤ 0) is 0.0115.
        assert_eq!(least_hits(20, 0.2, 0.02), 1);
        assert_eq!(least_hits(20, 0.2, 0.07), 2);
        // P(X ≤ 4) of 10 at 0.5 is 0.377, P(X ≤ 5) is 0.623.
        assert_eq!(least_hits(10, 0.5, 0.5), 5);
        assert_eq!(least_hits(1_200, 0.95, 1e-9), 1_090);
        assert_eq!(least_hits(7, 1.0, 1e-9), 7);
        assert_eq!(least_hits(7, 0.0, 1e-9), 0);
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let (mean, deviation) = mean_and_deviation(&[1.0, 2.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-12 && (deviation - 1.0).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }
}
