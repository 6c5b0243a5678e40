//! Which numbers were told so far, of records or of stacks: none comes twice.

use std::collections::BTreeMap;

/// Numbers that were told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Runs of them: the number after the last, by the first. They neither touch nor overlap.
    runs: BTreeMap<u64, u64>,
    /// The number after the last that was told.
    next: u64,
}

impl Told {
    /// The number after the last that was told; 0 before the first.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a run, which must not be empty; answers whether none of it was there.
    pub(super) fn add(&mut self, first: u64, after: u64) -> bool {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again_in_any_order() {
        let mut told = Told::default();
        for (first, after) in [(10, 20), (30, 40), (20, 30), (0, 5), (5, 10), (40, 41)] {
            assert!(told.add(first, after), "{first}");
            assert!(!told.add(first, first + 1) && !told.add(after - 1, after + 9));
            assert_eq!(told.next(), after);
        }
        assert_eq!(told.runs.len(), 1);
        assert!(!told.add(0, u64::MAX) && !told.add(7, 7) && !told.add(9, 3));
        assert!(told.add(41, u64::MAX));
    }
}
