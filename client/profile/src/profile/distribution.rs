//! How often each value occurred, in the buckets of the agent's histograms.

use unikprof_proto::message::{BUCKETS, Histogram, bucket_floor};
use unikprof_proto::varint::take_varint;

/// How often each bucket was hit. Buckets are exact below 8, then four for each power of two.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Distribution {
    /// Buckets in rising order, each with its count.
    counts: Vec<(usize, u64)>,
    /// The greatest value.
    max: u64,
}

/// A range of values, and how many there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bin {
    /// The least value that belongs to it.
    pub from: u64,
    /// The greatest value that belongs to it.
    pub to: u64,
    /// How many values there were.
    pub count: u64,
}

impl Distribution {
    /// The pairs of a histogram; `None` where they are no pairs or name impossible buckets.
    pub(crate) fn of(histogram: &Histogram<'_>) -> Option<Distribution> {
        let mut bytes = histogram.buckets;
        let mut counts: Vec<(usize, u64)> = Vec::new();
        while !bytes.is_empty() {
            let bucket = usize::try_from(take_varint(&mut bytes)?).ok()?;
            let count = take_varint(&mut bytes)?;
            let rises = counts.last().is_none_or(|(last, _)| *last < bucket);
            if bucket >= BUCKETS || !rises {
                return None;
            }
            counts.push((bucket, count));
        }
        Some(Distribution { counts, max: histogram.max })
    }

    /// A distribution of these values, each with its count.
    pub fn from_values(values: impl IntoIterator<Item = (u64, u64)>) -> Distribution {
        let mut all = Distribution::default();
        for (value, count) in values {
            all = all.plus(&Distribution {
                counts: vec![(unikprof_proto::message::bucket(value), count)],
                max: value,
            });
        }
        all
    }

    /// The greatest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// How many values there are, stopping at the largest number.
    pub fn count(&self) -> u64 {
        let counts = self.counts.iter().map(|(_, count)| *count);
        counts.fold(0, u64::saturating_add)
    }

    /// A value that at least this percentage of the values does not exceed: the end of its bucket.
    /// Zero if there are no values.
    pub fn percentile(&self, percent: u64) -> u64 {
        let total: u128 = self.counts.iter().map(|(_, count)| u128::from(*count)).sum();
        let wanted = (total * u128::from(percent)).div_ceil(100);
        let mut below = 0;
        for (bucket, count) in &self.counts {
            below += u128::from(*count);
            if below >= wanted && *count > 0 {
                return last_of(*bucket).min(self.max);
            }
        }
        0
    }

    /// Both together.
    #[must_use]
    pub(crate) fn plus(&self, other: &Distribution) -> Distribution {
        let mut counts = self.counts.clone();
        for &(bucket, count) in &other.counts {
            match counts.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
                Ok(at) => counts[at].1 = counts[at].1.saturating_add(count),
                Err(at) => counts.insert(at, (bucket, count)),
            }
        }
        Distribution { counts, max: self.max.max(other.max) }
    }

    /// The buckets that were hit.
    pub fn stretches(&self) -> impl Iterator<Item = Bin> + '_ {
        self.counts.iter().filter(|(_, count)| *count != 0).map(|&(bucket, count)| Bin {
            from: bucket_floor(bucket),
            to: last_of(bucket),
            count,
        })
    }

    /// The values in coarse steps for display, each eight times as wide as the previous one, from
    /// the first nonempty step to the last, including empty ones between.
    pub fn coarse(&self) -> Vec<Bin> {
        // Three powers of two, four buckets each; the first eight buckets are 0 to 7.
        let step = |bucket: usize| bucket.saturating_sub(8) / 12 + usize::from(bucket >= 8);
        let hit = || self.counts.iter().filter(|(_, count)| *count != 0);
        let (Some((first, _)), Some((last, _))) = (hit().next(), hit().next_back()) else {
            return Vec::new();
        };
        (step(*first)..=step(*last))
            .map(|at| Bin {
                from: if at == 0 { 0 } else { 1 << (3 * at) },
                to: 1_u64.checked_shl(3 * (at as u32 + 1)).map_or(u64::MAX, |end| end - 1),
                count: hit()
                    .filter(|(bucket, _)| step(*bucket) == at)
                    .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)),
            })
            .collect()
    }
}

fn last_of(bucket: usize) -> u64 {
    match bucket + 1 {
        BUCKETS => u64::MAX,
        next => bucket_floor(next) - 1,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(buckets: &[u8], max: u64) -> Option<Distribution> {
        Distribution::of(&Histogram { epoch: 0, vcpu: 0, kind: 0, max, buckets })
    }

    #[test]
    fn percentiles_are_the_ends_of_their_buckets() {
        // 98 values of 4, one in 8..=9 and one in 12..=13, whose greatest is 12.
        let distribution = of(&[4, 98, 8, 1, 10, 1], 12).unwrap();
        assert_eq!(distribution.percentile(50), 4);
        assert_eq!(distribution.percentile(98), 4);
        assert_eq!(distribution.percentile(99), 9);
        assert_eq!(distribution.percentile(100), 12);
        assert_eq!(of(&[], 0).unwrap().percentile(50), 0);
        let last = of(&[127, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], 77);
        assert_eq!(last.unwrap().percentile(99), 77);
    }

    #[test]
    fn impossible_pairs_are_refused() {
        assert_eq!(of(&[4], 1), None, "half a pair");
        assert_eq!(of(&[128, 1, 1], 1), None, "a bucket beyond the last");
        assert_eq!(of(&[4, 1, 4, 1], 1), None, "a bucket twice");
    }

    #[test]
    fn vcpus_add_up_bucket_by_bucket() {
        let one = Distribution::from_values([(4, 10), (100, 1)]);
        let other = Distribution::from_values([(4, 5), (50, 2)]);
        let both = one.plus(&other);
        let counts: Vec<u64> = both.stretches().map(|s| s.count).collect();
        assert_eq!((counts, both.max()), (vec![15, 2, 1], 100));
        assert_eq!(both, other.plus(&one));
    }

    #[test]
    fn coarse_steps_hold_every_value_once() {
        for value in [0, 7, 8, 63, 64, 511, 512, 1 << 30, (1 << 33) - 1] {
            let coarse = Distribution::from_values([(value, 3)]).coarse();
            let [only] = coarse[..] else {
                panic!("{value}: {coarse:?}");
            };
            assert!(only.from <= value && value <= only.to, "{value}: {only:?}");
            assert_eq!(only.count, 3);
        }
        let gap = Distribution::from_values([(3, 1), (600, 2)]).coarse();
        let shown: Vec<_> = gap.iter().map(|s| (s.from, s.to, s.count)).collect();
        assert_eq!(shown, [(0, 7, 1), (8, 63, 0), (64, 511, 0), (512, 4095, 2)]);
        assert!(Distribution::default().coarse().is_empty());
    }

    #[test]
    fn hostile_counts_do_not_overflow() {
        let most = Distribution::from_values([(1, u64::MAX), (2, u64::MAX), (u64::MAX, 1)]);
        assert_eq!(most.count(), u64::MAX);
        assert!(most.plus(&most).percentile(99) > 0);
        assert_eq!(most.coarse()[0].count, u64::MAX);
    }
}
