//! Quantiles of the agent's histograms.

use unikprof_proto::message::{BUCKETS, Histogram, bucket_floor};
use unikprof_proto::nodes::take_varint;

/// How often each bucket was hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Distribution {
    counts: Vec<(usize, u64)>,
    pub(super) max: u64,
}

impl Distribution {
    /// The pairs of a histogram; `None` where they are no pairs or name impossible buckets.
    pub(super) fn of(histogram: &Histogram<'_>) -> Option<Distribution> {
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
        Some(Distribution {
            counts,
            max: histogram.max,
        })
    }

    /// A value that at least this share (of 100) of the values does not exceed: the end of the
    /// bucket in which it lies. Zero where there are no values.
    pub(super) fn percentile(&self, percent: u64) -> u64 {
        let total: u128 = self
            .counts
            .iter()
            .map(|(_, count)| u128::from(*count))
            .sum();
        let wanted = (total * u128::from(percent)).div_ceil(100);
        let mut below = 0;
        for (bucket, count) in &self.counts {
            below += u128::from(*count);
            if below >= wanted && *count > 0 {
                let end = match bucket + 1 {
                    BUCKETS => u64::MAX,
                    next => bucket_floor(next) - 1,
                };
                return end.min(self.max);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(buckets: &[u8], max: u64) -> Option<Distribution> {
        Distribution::of(&Histogram {
            epoch: 0,
            vcpu: 0,
            kind: 0,
            max,
            buckets,
        })
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
}
