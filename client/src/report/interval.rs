//! How far a sampled share can be trusted.

/// A share and its 95 % interval, all between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    const Z: f64 = 1.959_963_984_540_054;

    /// Wilson's score interval for `hits` out of `samples`; nothing is known without samples.
    ///
    /// It never leaves 0 to 1 and stays honest near both, where the textbook interval collapses
    /// (E. B. Wilson, 1927).
    pub fn wilson(hits: u64, samples: u64) -> Interval {
        if samples == 0 {
            return Interval {
                share: 0.0,
                low: 0.0,
                high: 1.0,
            };
        }
        let n = samples as f64;
        let share = (hits as f64 / n).min(1.0);
        let z2 = Self::Z * Self::Z;
        let center = share + z2 / (2.0 * n);
        let spread = Self::Z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z2 / n;
        Interval {
            share,
            // Rounding must not push the ends past what was seen.
            low: ((center - spread) / scale).clamp(0.0, share),
            high: ((center + spread) / scale).clamp(share, 1.0),
        }
    }

    /// Whether some value lies in both.
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Interval, low: f64, high: f64) {
        assert!((found.low - low).abs() < 5e-5, "{found:?}, expected {low}");
        assert!(
            (found.high - high).abs() < 5e-5,
            "{found:?}, expected {high}"
        );
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
        for (hits, samples) in [
            (0, 1),
            (1, 1),
            (5, 5),
            (u64::MAX, u64::MAX),
            (7, 3),
            (1, u64::MAX),
        ] {
            let found = Interval::wilson(hits, samples);
            assert!(0.0 <= found.low && found.low <= found.share, "{found:?}");
            assert!(found.share <= found.high && found.high <= 1.0, "{found:?}");
        }
        assert_eq!(
            Interval::wilson(0, 0),
            Interval {
                share: 0.0,
                low: 0.0,
                high: 1.0
            }
        );
    }

    #[test]
    fn neighbours_are_told_apart_only_by_enough_samples() {
        assert!(Interval::wilson(12, 100).overlaps(&Interval::wilson(10, 100)));
        assert!(!Interval::wilson(12_000, 100_000).overlaps(&Interval::wilson(10_000, 100_000)));
    }
}
