//! How far a sampled share can be trusted.

use super::mode::Unit;

/// A share and its 95 % interval, all between 0 and 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Interval {
    /// The share that was seen.
    pub share: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The normal distribution holds 95 % within this many standard deviations.
    pub const Z: f64 = 1.959_963_984_540_054;

    /// Wilson's score interval for `hits` out of `samples`; from 0 to 1 if there are no samples.
    ///
    /// It never exceeds the range from 0 to 1 and remains valid near both ends, where the textbook
    /// interval collapses (E. B. Wilson, 1927).
    pub fn wilson(hits: u64, samples: u64) -> Interval {
        let share = (hits as f64 / samples as f64).min(1.0);
        Interval::of_share(share, samples as f64)
    }

    /// The same of a share of so many independent samples, which need not be a whole number.
    pub fn of_share(share: f64, n: f64) -> Interval {
        if n == 0.0 {
            return Interval { share: 0.0, low: 0.0, high: 1.0 };
        }
        let z = Self::Z;
        let z2 = z * z;
        let center = share + z2 / (2.0 * n);
        let spread = z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z2 / n;
        Interval {
            share,
            // Rounding must not push the ends past what was seen.
            low: ((center - spread) / scale).clamp(0.0, share),
            high: ((center + spread) / scale).clamp(share, 1.0),
        }
    }

    /// A share that was measured and not sampled: its ends are itself.
    pub fn measured(part: u64, whole: u64) -> Interval {
        let share = match whole {
            0 => 0.0,
            _ => (part as f64 / whole as f64).min(1.0),
        };
        Interval { share, low: share, high: share }
    }

    /// The interval's ends; `None` if the share was measured, or is of allocations that are all
    /// known.
    pub fn ends(&self, unit: Unit) -> Option<[f64; 2]> {
        let has_ends = match unit {
            Unit::Samples => true,
            Unit::Nanoseconds => false,
            Unit::Bytes | Unit::Objects => self.low < self.high,
        };
        has_ends.then_some([self.low, self.high])
    }

    /// Whether the intervals overlap. Shares of one recording can differ significantly even then.
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Interval, low: f64, high: f64) {
        assert!((found.low - low).abs() < 5e-5, "{found:?}, expected {low}");
        assert!((found.high - high).abs() < 5e-5, "{found:?}, expected {high}");
    }

    /// R. G. Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I,
    /// method 3.
    #[test]
    fn the_published_values_come_out() {
        close(Interval::wilson(81, 263), 0.2553, 0.3662);
        close(Interval::wilson(15, 148), 0.0624, 0.1605);
        close(Interval::wilson(0, 20), 0.0, 0.1611);
        close(Interval::wilson(1, 29), 0.0061, 0.1718);
    }

    #[test]
    fn the_ends_hold_what_was_seen() {
        for (hits, samples) in [(0, 1), (1, 1), (5, 5), (u64::MAX, u64::MAX), (7, 3), (1, u64::MAX)]
        {
            let found = Interval::wilson(hits, samples);
            assert!(0.0 <= found.low && found.low <= found.share, "{found:?}");
            assert!(found.share <= found.high && found.high <= 1.0, "{found:?}");
        }
        assert_eq!(Interval::wilson(0, 0), Interval { share: 0.0, low: 0.0, high: 1.0 });
    }

    #[test]
    fn a_measured_share_has_no_width() {
        let found = Interval::measured(1, 4);
        assert_eq!((found.low, found.share, found.high), (0.25, 0.25, 0.25));
        assert_eq!(Interval::measured(1, 0).share, 0.0);
        assert!(!found.overlaps(&Interval::measured(2, 4)));
    }
}
