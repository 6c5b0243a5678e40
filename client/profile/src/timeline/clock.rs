//! Converts between the guest's monotonic clock and dates.

/// Dates on the guest's monotonic clock, from the moments at which both were recorded. The date may
/// step forwards or back: a moment between two recorded ones uses the earlier one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WallClock {
    /// Monotonic and ns since 1970 (UTC), in the order of the first.
    anchors: Vec<(u64, u64)>,
}

impl WallClock {
    /// A clock with these recorded pairs: monotonic ns and ns since 1970 (UTC).
    pub fn new(told: impl IntoIterator<Item = (u64, u64)>) -> WallClock {
        let mut anchors: Vec<_> = told.into_iter().collect();
        anchors.sort_unstable();
        anchors.dedup();
        WallClock { anchors }
    }

    /// The date at a moment, in ns since 1970 (UTC).
    pub fn unix_ns(&self, at_ns: u64) -> Option<u64> {
        let after = self.anchors.partition_point(|(told, _)| *told <= at_ns);
        let (told_ns, unix_ns) = self.anchors.get(after.saturating_sub(1))?;
        match at_ns.checked_sub(*told_ns) {
            Some(later) => unix_ns.checked_add(later),
            None => unix_ns.checked_sub(told_ns - at_ns),
        }
    }

    /// The moment of a date; the latest one if the clock stepped back over it. Dates before all
    /// recorded ones use the first.
    pub(crate) fn monotonic_ns(&self, date_ns: u64) -> Option<u64> {
        let first = self.anchors.first()?;
        let from = |(told_ns, unix_ns): (u64, u64)| match date_ns.checked_sub(unix_ns) {
            Some(later) => told_ns.checked_add(later),
            None => Some(told_ns.saturating_sub(unix_ns - date_ns)),
        };
        let mut found = None;
        for (at, anchor) in self.anchors.iter().enumerate() {
            let next = self.anchors.get(at + 1).map(|(told, _)| *told);
            let moment = from(*anchor).filter(|_| date_ns >= anchor.1);
            // One that the clock stepped over is the moment of the step.
            found = moment.map(|moment| next.map_or(moment, |next| moment.min(next))).or(found);
        }
        found.or_else(|| from(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_told_from_the_moment_before() {
        let clock = WallClock::new([(1_000, 50_000), (2_000, 51_000)]);
        assert_eq!(clock.unix_ns(1_500), Some(50_500));
        assert_eq!(clock.unix_ns(0), Some(49_000));
        assert_eq!(clock.monotonic_ns(50_700), Some(1_700));
        assert_eq!(clock.monotonic_ns(49_500), Some(500));
        assert_eq!(clock.monotonic_ns(60_000), Some(11_000));
        assert_eq!(WallClock::default().unix_ns(1), None);
    }

    /// A guest whose date is set while it is recorded.
    #[test]
    fn a_date_that_steps_moves_only_what_comes_after() {
        let forwards = WallClock::new([(1_000, 50_000), (2_000, 90_000)]);
        assert_eq!(forwards.unix_ns(1_999), Some(50_999));
        assert_eq!(forwards.unix_ns(2_000), Some(90_000));
        assert_eq!(forwards.monotonic_ns(70_000), Some(2_000), "stepped over");
        let back = WallClock::new([(1_000, 50_000), (2_000, 50_200)]);
        assert_eq!(back.monotonic_ns(50_300), Some(2_100), "the latest");
        assert_eq!(back.monotonic_ns(50_100), Some(1_100));
    }

    #[test]
    fn hostile_times_do_not_overflow() {
        let clock = WallClock::new([(u64::MAX, 0), (0, u64::MAX)]);
        assert_eq!(clock.unix_ns(5), None);
        assert_eq!(clock.unix_ns(u64::MAX), Some(0));
        assert_eq!(clock.monotonic_ns(u64::MAX), None.or(clock.monotonic_ns(u64::MAX)));
    }
}
