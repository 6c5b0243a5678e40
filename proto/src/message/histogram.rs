//! The buckets of a [`Histogram`](super::Histogram).

/// The number of buckets in a histogram.
pub const BUCKETS: usize = 128;

/// The bucket of `value`: exact below 8, then four buckets for each power of two.
///
/// ```
/// use unikprof_proto::message::{bucket, bucket_floor};
/// assert_eq!(bucket(5), 5);
/// assert!(bucket_floor(bucket(1000)) <= 1000 && bucket_floor(bucket(1000) + 1) > 1000);
/// ```
#[inline]
pub fn bucket(value: u64) -> usize {
    if value < 8 {
        return value as usize;
    }
    let exponent = value.ilog2();
    let quarter = (value >> (exponent - 2)) & 3;
    (8 + (exponent as usize - 3) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The least value that falls into a bucket.
pub fn bucket_floor(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let exponent = (bucket - 8) / 4 + 3;
    let quarter = (bucket - 8) % 4;
    (4 + quarter as u64) << (exponent - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        for index in 0..BUCKETS {
            let floor = bucket_floor(index);
            assert_eq!(bucket(floor), index, "floor {floor}");
            if index > 0 {
                assert_eq!(bucket(floor - 1), index - 1);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
