//! Sets of numbers that consist of few runs: positions of records, numbers of stack nodes.

use std::collections::BTreeMap;

/// A set of numbers, kept as runs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Runs {
    /// The number after each run's last, by the run's first. Runs neither touch nor overlap.
    runs: BTreeMap<u64, u64>,
    /// The number after the run that was added last.
    next: u64,
}

impl Runs {
    /// The number after the run that was added last; 0 before the first.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds the numbers from `first` up to `after`, exclusive. Returns false and adds nothing if
    /// the run is empty or one of its numbers is in the set already.
    pub(crate) fn add(&mut self, first: u64, after: u64) -> bool {
        let before = self.runs.range(..after).next_back();
        let before = before.map(|(first, after)| (*first, *after));
        if before.is_some_and(|(_, end)| end > first) || first >= after {
            return false;
        }
        self.next = after;
        let end = self.runs.remove(&after).unwrap_or(after);
        let first = match before {
            Some((start, end)) if end == first => start,
            _ => first,
        };
        self.runs.insert(first, end);
        true
    }

    /// Adds the numbers from `first` up to `after`, exclusive, that are not in the set yet.
    pub(crate) fn unite(&mut self, mut first: u64, after: u64) {
        while first < after {
            let known = self.runs.range(..=first).next_back().map_or(first, |(_, end)| *end);
            first = first.max(known);
            let end = self.runs.range(first..).next().map_or(after, |(next, _)| after.min(*next));
            self.add(first, end);
            first = first.max(end);
        }
    }

    /// Whether a number is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let run = self.runs.range(..=number).next_back();
        run.is_some_and(|(_, after)| number < *after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_added_once_in_any_order() {
        let mut runs = Runs::default();
        for (first, after) in [(10, 20), (30, 40), (20, 30), (0, 5), (5, 10), (40, 41)] {
            assert!(!runs.contains(first));
            assert!(runs.add(first, after), "{first}");
            assert!(runs.contains(first) && runs.contains(after - 1));
            assert!(!runs.add(first, first + 1) && !runs.add(after - 1, after + 9));
            assert_eq!(runs.next(), after);
        }
        assert_eq!(runs.runs.len(), 1);
        for (first, after) in [(50, 52), (54, 55), (45, 60), (60, 61), (45, 46)] {
            runs.unite(first, after);
        }
        assert_eq!(runs.runs.remove(&45), Some(61));
        assert!(!runs.add(0, u64::MAX) && !runs.add(7, 7) && !runs.add(9, 3));
        assert!(!runs.contains(41) && runs.add(41, u64::MAX));
    }
}
