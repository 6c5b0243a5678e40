//! The statistics by which runs are judged. Shares have the client's own intervals:
//! [`Interval::wilson`].

use unikprof_profile::profile::Interval;

/// The standard deviations from the mean within which 95 % of a normal distribution lie.
const Z: f64 = 1.959_963_984_540_054;

/// The probability with which a sound case misses its bound where that is one of chance: a thousand
/// runs of the suite.
pub const RISK: f64 = 0.001;

/// The number of intervals that hold the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Intervals that held it.
    pub held: u64,
    pub stated: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, interval: &Interval, truth: f64) {
        self.stated += 1;
        self.held += u64::from(holds(interval, truth));
    }

    /// The part of the intervals that held the truth; 0 where there were none.
    pub(crate) fn share(&self) -> f64 {
        self.held as f64 / self.stated.max(1) as f64
    }
}

pub(crate) fn holds(interval: &Interval, truth: f64) -> bool {
    (interval.low..=interval.high).contains(&truth)
}

/// The errors of several runs' counts against those expected, and what chance makes of independent
/// samples.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    sum: f64,
    squares: f64,
    variance: f64,
}

impl Errors {
    /// Adds a run: so many of its samples were of a function with this true share.
    pub(crate) fn add(&mut self, seen: u64, samples: u64, truth: f64) {
        let error = seen as f64 - truth * samples as f64;
        self.sum += error;
        self.squares += error * error;
        self.variance += samples as f64 * truth * (1.0 - truth);
    }

    /// The variance of the errors, to that of independent samples; 0 where there are none.
    pub(crate) fn design_effect(&self) -> f64 {
        self.squares / self.variance.max(f64::MIN_POSITIVE)
    }

    /// The standard deviations by which all runs together are above what was expected. A design
    /// effect above 1 makes the deviation larger; one below 1 does not make it smaller.
    pub fn deviations(&self) -> f64 {
        let variance = self.variance * self.design_effect().max(1.0);
        self.sum / variance.max(f64::MIN_POSITIVE).sqrt()
    }
}

/// A factor with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Samples in a function and in what it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Odds {
    pub(crate) function: u64,
    pub(crate) other: u64,
}

impl Factor {
    /// The factor by which the function takes longer `after` than `before`, the other staying as it
    /// is: the ratio of odds, with B. Woolf's interval (1955): the logarithm's variance is the sum
    /// of the reciprocal counts. `None` where a count is 0.
    pub(crate) fn of_odds(before: Odds, after: Odds) -> Option<Factor> {
        let counts = [before.function, before.other, after.function, after.other];
        if counts.contains(&0) {
            return None;
        }
        let [a, b, c, d] = counts.map(|count| count as f64);
        let factor = (c / d) / (a / b);
        let spread = (Z * (1.0 / a + 1.0 / b + 1.0 / c + 1.0 / d).sqrt()).exp();
        Some(Factor { factor, low: factor / spread, high: factor * spread })
    }

    pub(crate) fn holds(&self, truth: f64) -> bool {
        (self.low..=self.high).contains(&truth)
    }

    /// The standard deviations by which it is above the truth, as the interval has them and not
    /// only its 1.96.
    pub fn deviations_from(&self, truth: f64) -> f64 {
        (self.factor / truth).ln() / self.deviation()
    }

    /// The standard deviation of the factor's logarithm.
    fn deviation(&self) -> f64 {
        (self.high / self.low).ln() / (2.0 * Z)
    }
}

/// Several factors, each beside its own truth.
///
/// The logarithms of their errors are averaged, each with the reciprocal of its variance. A sum of
/// all samples would let a recording that lost samples count for less in the samples than in the
/// truth. How much the errors scatter says whether the intervals are as wide as they should be: the
/// design effect is their variance to the variance that the intervals state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pooled {
    /// The factors to their truths, all together: 1 where there is no bias.
    pub(crate) error: Factor,
    /// The variance of the errors, to that which their intervals state: 1 where these are right.
    pub(crate) design_effect: f64,
    pub(crate) count: u64,
}

impl Pooled {
    /// Puts factors and their truths together; `None` where there are fewer than two. A design
    /// effect above 1 widens the interval; one below 1 does not narrow it.
    pub(crate) fn of(factors: &[(Factor, f64)]) -> Option<Pooled> {
        if factors.len() < 2 {
            return None;
        }
        let weighted = factors.iter().map(|(factor, truth)| {
            let weight = factor.deviation().powi(-2);
            (weight, (factor.factor / truth).ln())
        });
        let weighted: Vec<(f64, f64)> = weighted.collect();
        let weights: f64 = weighted.iter().map(|(weight, _)| weight).sum();
        let mean = weighted.iter().map(|(weight, it)| weight * it).sum::<f64>() / weights;
        let squares = weighted.iter().map(|(weight, it)| weight * (it - mean).powi(2));
        let design_effect = squares.sum::<f64>() / (factors.len() - 1) as f64;
        let spread = Z * (design_effect.max(1.0) / weights).sqrt();
        Some(Pooled {
            error: Factor {
                factor: mean.exp(),
                low: (mean - spread).exp(),
                high: (mean + spread).exp(),
            },
            design_effect,
            count: factors.len() as u64,
        })
    }

    /// Whether there is no bias, and the intervals are neither too narrow nor too wide: a sound
    /// profiler misses each of the three bounds in one of 1,000 runs.
    pub(crate) fn is_sound(&self) -> bool {
        let (least, most) = scatter_bounds(self.count.saturating_sub(1));
        self.error.deviations_from(1.0).abs() <= RISK_DEVIATIONS
            && (least..=most).contains(&self.design_effect)
    }
}

/// A normal deviate is beyond this, to either side, with a probability of [`RISK`].
const RISK_DEVIATIONS: f64 = 3.290_526_731_491_926;

/// The bounds that the mean of so many squared normal deviates misses, to either side, with a
/// probability of [`RISK`] each (E. B. Wilson and M. M. Hilferty, 1931).
pub(crate) fn scatter_bounds(count: u64) -> (f64, f64) {
    const ONE_SIDED: f64 = 3.090_232_306_167_813;
    let ninth = 2.0 / (9.0 * count.max(1) as f64);
    let bound = |deviations: f64| (1.0 - ninth + deviations * ninth.sqrt()).max(0.0).powi(3);
    (bound(-ONE_SIDED), bound(ONE_SIDED))
}

/// The greatest number of hits that `trials`, each a hit with this probability, stay below with at
/// most the given `risk`: a bound that a sound run misses that seldom.
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
        assert!((found.deviations_from(found.low) - Z).abs() < 1e-9);
        assert!((found.deviations_from(found.high) + Z).abs() < 1e-9);
        assert_eq!(Factor::of_odds(odds(0, 1), odds(1, 1)), None);
    }

    /// 100 samples at a share of a half have a variance of 25.
    #[test]
    fn errors_are_told_in_standard_deviations() {
        let errors = |counts: &[u64]| {
            let mut errors = Errors::default();
            counts.iter().for_each(|seen| errors.add(*seen, 100, 0.5));
            errors
        };
        let even = errors(&[55, 45, 55, 45]);
        assert!((even.design_effect() - 1.0).abs() < 1e-9 && even.deviations().abs() < 1e-9);
        // A bias of one deviation a run is one of two in four, by the design effect that it makes.
        let off = errors(&[55; 4]);
        assert!((off.deviations() - 2.0).abs() < 1e-9, "{off:?}");
        // 40 and 60 have four times the variance, and all together half as many deviations.
        let clustered = errors(&[60, 60, 60, 40]);
        assert!((clustered.design_effect() - 4.0).abs() < 1e-9);
        assert!((clustered.deviations() - 20.0 / 20.0).abs() < 1e-9);
        assert!(Errors::default().deviations().abs() < 1e-9);
    }

    /// Against tables of the χ² distribution: 5.921 and 45.315 for 20 degrees of freedom.
    #[test]
    fn squared_deviates_have_their_bounds() {
        let (least, most) = scatter_bounds(20);
        assert!((least * 20.0 - 5.921).abs() < 0.1, "{least}");
        assert!((most * 20.0 - 45.315).abs() < 0.2, "{most}");
    }

    /// Factors with a standard deviation of 0.1, as stated, whose errors are these many of it.
    fn pooled(errors: &[f64]) -> Pooled {
        let factor = |error: &f64| {
            let factor = 1.5 * (error * 0.1).exp();
            let spread = (Z * 0.1).exp();
            let (low, high) = (factor / spread, factor * spread);
            (Factor { factor, low, high }, 1.5)
        };
        let factors: Vec<(Factor, f64)> = errors.iter().map(factor).collect();
        Pooled::of(&factors).unwrap()
    }

    #[test]
    fn pooled_factors_tell_bias_and_clusters() {
        // Errors of ±1 in turn: no bias, and a variance of 20/19.
        let sound: Vec<f64> = (0..20).map(|at| f64::from(at % 2) * 2.0 - 1.0).collect();
        let found = pooled(&sound);
        assert!((found.error.factor - 1.0).abs() < 1e-9, "{found:?}");
        assert!((found.design_effect - 20.0 / 19.0).abs() < 1e-9, "{found:?}");
        // 0.1 ÷ √20, by the design effect.
        let deviation = 0.1 / f64::sqrt(20.0) * f64::sqrt(20.0 / 19.0);
        assert!((found.error.deviation() - deviation).abs() < 1e-9);
        assert!(found.is_sound());
        let changed = |by: fn(f64) -> f64| -> Vec<f64> { sound.iter().map(|it| by(*it)).collect() };
        assert!(!pooled(&changed(|it| it + 0.8)).is_sound(), "a bias");
        assert!(!pooled(&changed(|it| it * 1.6)).is_sound(), "too narrow");
        assert!(!pooled(&changed(|it| it * 0.5)).is_sound(), "too wide");
        assert_eq!(Pooled::of(&[]), None);
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
}
