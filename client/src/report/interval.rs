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

    /// A share that was measured and not sampled: its ends are itself.
    pub fn measured(part: u64, whole: u64) -> Interval {
        let share = match whole {
            0 => 0.0,
            _ => (part as f64 / whole as f64).min(1.0),
        };
        Interval {
            share,
            low: share,
            high: share,
        }
    }

    /// How many samples would tell two shares apart, if they stay as they are: about the least number
    /// at which their [Wilson](Interval::wilson) intervals do not overlap. `None` where no number
    /// below 10¹² does.
    pub fn samples_to_tell_apart(a: f64, b: f64) -> Option<u64> {
        const MOST: u64 = 1_000_000_000_000;
        let of = |share: f64, samples: u64| {
            Interval::wilson((share * samples as f64).round() as u64, samples)
        };
        let apart = |samples: u64| !of(a, samples).overlaps(&of(b, samples));
        if !apart(MOST) {
            return None;
        }
        let (mut not, mut yes) = (0, MOST);
        while yes - not > 1 {
            let middle = not + (yes - not) / 2;
            if apart(middle) {
                yes = middle;
            } else {
                not = middle;
            }
        }
        Some(yes)
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
    fn the_samples_needed_are_those_from_which_intervals_part() {
        // By the normal approximation: (z (√(0.12 × 0.88) + √(0.1 × 0.9)) / 0.02)² = 3,751.
        let needed = Interval::samples_to_tell_apart(0.12, 0.10).unwrap_or(0);
        assert!((3_650..3_850).contains(&needed), "{needed}");
        assert_eq!(Interval::samples_to_tell_apart(0.1, 0.1), None);
        let few = Interval::samples_to_tell_apart(0.9, 0.1).unwrap_or(0);
        assert!(few < 15, "{few}");
    }

    #[test]
    fn a_measured_share_has_no_width() {
        let found = Interval::measured(1, 4);
        assert_eq!((found.low, found.share, found.high), (0.25, 0.25, 0.25));
        assert_eq!(Interval::measured(1, 0).share, 0.0);
        assert!(!found.overlaps(&Interval::measured(2, 4)));
    }

    #[test]
    fn neighbours_are_told_apart_only_by_enough_samples() {
        assert!(Interval::wilson(12, 100).overlaps(&Interval::wilson(10, 100)));
        assert!(!Interval::wilson(12_000, 100_000).overlaps(&Interval::wilson(10_000, 100_000)));
    }
}
