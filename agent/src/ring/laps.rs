//! Divides a position into its lap and its place within the lap, without a division instruction.

/// Laps of a fixed length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    shift: u32,
    /// ⌈2⁶⁴ ÷ blocks⌉, where a lap consists of `blocks` blocks of 2^shift records. There are fewer
    /// than 256 blocks: the rounding error stays below one block for every position below 2⁵⁶.
    reciprocal: u64,
    capacity: u64,
}

impl Laps {
    /// Laps of at most `records` records, and at least 127/128 of that; `None` if that is less than
    /// 2.
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

    /// The number of records in a lap.
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

    /// Guards against lost records (a place outside the lap) and mixed ones (a wrong lap).
    #[test]
    fn every_position_has_the_lap_and_place_that_division_gives() {
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
