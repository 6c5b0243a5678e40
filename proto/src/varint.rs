//! Variable-length integers: LEB128, as in postcard.

/// Writes `value` at the start of `buffer`; returns its length in bytes, or 0 if it does not fit.
pub fn put_varint(value: u64, buffer: &mut [u8]) -> usize {
    let mut output = Output::new(buffer);
    output.varint(value);
    if output.length <= output.buffer.len() { output.length } else { 0 }
}

/// Takes a varint from the front of `bytes`; `None` if it is truncated or longer than 64 bits.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut input = Input { bytes };
    let value = input.varint()?;
    *bytes = input.bytes;
    Some(value)
}

/// Maps small negative numbers to small unsigned ones.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Writes bytes and varints into a buffer. Bytes that do not fit are dropped.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    buffer: &'a mut [u8],
    /// Includes dropped bytes.
    length: usize,
}

impl<'a> Output<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// The length of the unused rest of the buffer.
    pub(crate) fn room(&self) -> usize {
        self.buffer.len().saturating_sub(self.length)
    }

    /// The number of bytes written to the buffer.
    pub(crate) fn length(&self) -> usize {
        self.length.min(self.buffer.len())
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.length) {
            *place = byte;
        }
        self.length += 1;
    }

    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
}

/// Takes bytes and varints from the front of a slice.
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
}

impl Input<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths come from a peer: neither a varint without an end nor one that does not fit may be
    /// accepted.
    #[test]
    fn truncated_and_oversized_varints_are_rejected() {
        let mut buffer = [0; 10];
        assert_eq!(put_varint(u64::MAX, &mut buffer[..9]), 0);
        assert_eq!(put_varint(u64::MAX, &mut buffer), 10);
        assert_eq!(take_varint(&mut &buffer[..]), Some(u64::MAX));
        assert_eq!(take_varint(&mut &buffer[..9]), None);
        buffer[9] = 2;
        assert_eq!(take_varint(&mut &buffer[..]), None, "65 bits");
        assert_eq!(take_varint(&mut &[0xff; 11][..]), None, "no end");
    }

    /// A buffer that is too short must lose bytes, not more.
    #[test]
    fn output_beyond_the_buffer_is_dropped() {
        let mut buffer = [0; 3];
        let mut output = Output::new(&mut buffer[..2]);
        output.varint(1 << 20);
        assert_eq!((output.length(), output.room()), (2, 0));
        assert_eq!(buffer[2], 0);
    }
}
