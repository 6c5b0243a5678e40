//! Chance that can be had again.

/// A sequence that its seed decides (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring sequences, and 0 is no state.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A sequence of its own for each `stream` of the same seed.
    pub(crate) fn stream(seed: u64, stream: u64) -> Random {
        Random::new(seed ^ stream.wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 where that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number().checked_rem(bound).unwrap_or(0)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number() as u8).collect()
    }

    pub fn key(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| (self.number() >> 24) as u8)
    }
}
