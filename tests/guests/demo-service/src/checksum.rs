//! A fast sum over response bytes: it catches a wrong byte, not a forger.

/// Folds bytes into 64 bits, eight at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(u64);

impl Checksum {
    pub(crate) const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    /// The sum of one slice.
    pub(crate) fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::new();
        sum.update(bytes);
        sum.value()
    }

    /// Adds a slice and its length, so that neighbouring slices cannot trade bytes.
    #[inline(never)]
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last));
        self.fold(bytes.len() as u64);
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }

    fn fold(&mut self, word: u64) {
        // Each step is a bijection of the state, so one changed word always changes the sum.
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x0000_0100_0000_01B3)
            .rotate_left(23);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn every_single_changed_byte_changes_the_sum() {
        let bytes = vec![0x5A; 37];
        let sum = Checksum::of(&bytes);
        for position in 0..bytes.len() {
            let mut other = bytes.clone();
            other[position] ^= 1;
            assert_ne!(Checksum::of(&other), sum, "byte {position}");
        }
    }

    #[test]
    fn trailing_zeros_and_boundaries_count() {
        assert_ne!(Checksum::of(b"a"), Checksum::of(b"a\0"));
        let (mut left, mut right) = (Checksum::new(), Checksum::new());
        left.update(b"ab");
        left.update(b"c");
        right.update(b"a");
        right.update(b"bc");
        assert_ne!(left, right);
    }
}
