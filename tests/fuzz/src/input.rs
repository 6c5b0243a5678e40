//! The fuzzer's bytes as choices.

/// The rest of the bytes.
pub(crate) struct Input<'d> {
    bytes: &'d [u8],
}

impl<'d> Input<'d> {
    pub(crate) fn new(bytes: &'d [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// At most `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// A byte; zero where there is none.
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let number = if limit > 256 { usize::from(self.short()) } else { usize::from(self.byte()) };
        number % limit
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Any number; small ones take few bytes.
    pub(crate) fn number(&mut self) -> u64 {
        let length = usize::from(self.byte()) % 9;
        let mut bytes = [0; 8];
        let taken = self.bytes(length);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }
}
