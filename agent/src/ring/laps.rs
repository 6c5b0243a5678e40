//! Where a position lies: its lap and its place, without a division.

/// How positions are divided into laps of a fixed length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    shift: u32,
    /// ⌈2⁶⁴ ÷ blocks⌉, where a lap has so many blocks of 2^shift records. There are below 256 blocks: the
    /// product's error then stays below one part in a block for every position below 2⁵⁶.
    reciprocal: u64,
    capacity: u64,
}

impl Laps {
    /// Laps of at most so many records, and at least 127 of 128 of them; `None` below 2.
    pub(crate) fn new(records: usize) -> Option<Self> {
        let records = records as u64;
        let shift = (u64::BITS - records.leading_zeros()).saturating_sub(8);
        let blocks = records >> shift;
        (blocks >= 2).then(|| Self {
            shift,
            reciprocal: u64::MAX / blocks + 1,
            capacity: blocks << shift,
        })
    }

    /// How many records a lap has.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The lap, modulo 256, and the place within it.
    #[inline]
    pub(crate) fn locate(&self, position: u64) -> (u8, usize) {
        let block = position >> self.shift;
        let lap = (u128::from(block) * u128::from(self.reciprocal)) >> 64;
        let lap = lap as u64;
        let place = position.wrapping_sub(lap.wrapping_mul(self.capacity));
        (lap as u8, place as usize)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A place outside the lap would lose records; a wrong lap would mix old ones with new ones.
    #[test]
    fn every_position_lies_where_division_says() {
        assert!(Laps::new(0).is_none() && Laps::new(1).is_none());
        for records in [2, 3, 7, 64, 255, 256, 257, 1000, 65_535, 64_639, 1 << 26] {
            let laps = Laps::new(records).unwrap();
            let capacity = laps.capacity();
            assert!(capacity <= records as u64 && capacity * 128 >= records as u64 * 127);
            let near = (0..=u64::from(laps.shift) + 50).flat_map(|bits| {
                let around = (1_u64 << bits.min(55)) / capacity * capacity;
                (0..5).map(move |step| (around + step).saturating_sub(2))
            });
            for position in near.chain(0..3 * capacity.min(5000)) {
                let expected = ((position / capacity) as u8, (position % capacity) as usize);
                assert_eq!(laps.locate(position), expected, "{position} of {capacity}");
            }
        }
    }
}
