//! Live allocations: the compact encoding of sampled allocations that are still held.
//!
//! Each sample is three varints: the distance of its stack's [node number](crate::nodes) from that
//! of the previous sample, zigzag-encoded, the first one's from 0; its size in bytes; and its
//! birth, in ns after the run's base.

use crate::run::{self, InvalidRun};
use crate::varint::{Output, take_varint, unzigzag, zigzag};

/// The maximum length of a sample in bytes.
pub const MAX_SAMPLE_BYTES: usize = 30;

/// The memory of a place in an agent's table of live samples, rounded up to whole bytes.
pub const PLACE_BYTES: u64 = 34;

/// The name of a run's items in errors.
const ITEM: &str = "live sample";

/// A sampled allocation that is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The [number](crate::nodes) of its stack's leaf-most node.
    pub node: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When it was allocated, on the monotonic clock in ns.
    pub born_ns: u64,
}

/// Encodes a run of samples into a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    base_ns: u64,
    node: u64,
    output: Output<'a>,
}

impl<'a> Encoder<'a> {
    /// Begins a run whose births are counted from `base_ns`.
    pub fn new(base_ns: u64, buffer: &'a mut [u8]) -> Self {
        Self { base_ns, node: 0, output: Output::new(buffer) }
    }

    /// Whether this number of samples certainly fits.
    pub fn has_room_for(&self, samples: usize) -> bool {
        self.output.room() >= samples * MAX_SAMPLE_BYTES
    }

    /// Adds a sample, born at the base or later. Call it only while there [is
    /// room](Self::has_room_for).
    pub fn push(&mut self, sample: &Sample) {
        let distance = sample.node.wrapping_sub(self.node).cast_signed();
        self.output.varint(zigzag(distance));
        self.output.varint(sample.size);
        self.output.varint(sample.born_ns.saturating_sub(self.base_ns));
        self.node = sample.node;
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Decodes a run of `count` samples whose births are counted from `base_ns`, and passes each one to
/// `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid sample, after `visit` has seen those before it. Node number
/// 0 is invalid.
pub fn decode(
    base_ns: u64,
    count: u32,
    mut payload: &[u8],
    mut visit: impl FnMut(Sample),
) -> Result<(), InvalidRun> {
    let mut node = 0_u64;
    for index in 0..u64::from(count) {
        let mut value = || take_varint(&mut payload).ok_or(InvalidRun::Cut(ITEM, index));
        let (distance, size, age) = (value()?, value()?, value()?);
        node = node.wrapping_add(unzigzag(distance).cast_unsigned());
        let born_ns = base_ns.checked_add(age).filter(|_| node != 0);
        visit(Sample { node, size, born_ns: born_ns.ok_or(InvalidRun::Impossible(ITEM, index))? });
    }
    run::end(ITEM, payload)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn samples_come_back_in_their_order() {
        let sample = |node, size, born_ns| Sample { node, size, born_ns };
        let samples = [
            sample(1001, 64, 5_000),
            sample(990, 0, 5_001),
            sample(u64::MAX, u64::MAX, u64::MAX),
            sample(1, 8 << 20, 6_000),
        ];
        let mut buffer = [0; 4 * MAX_SAMPLE_BYTES];
        let mut encoder = Encoder::new(5_000, &mut buffer);
        for sample in &samples {
            assert!(encoder.has_room_for(1));
            encoder.push(sample);
        }
        let length = encoder.finish();
        assert!(length < 3 * MAX_SAMPLE_BYTES, "near nodes take few bytes");
        let mut back = Vec::new();
        decode(5_000, 4, &buffer[..length], |sample| back.push(sample)).unwrap();
        assert_eq!(back, samples);
    }

    #[test]
    fn hostile_runs_are_errors() {
        let decode = |base_ns, bytes: &[u8]| decode(base_ns, 1, bytes, |_| ());
        for cut in [&[][..], &[2], &[2, 1]] {
            assert_eq!(decode(0, cut), Err(InvalidRun::Cut(ITEM, 0)));
        }
        for (base_ns, bytes, why) in
            [(0, [0, 1, 1], "node 0"), (u64::MAX, [2, 1, 1], "born beyond 64 bits")]
        {
            let expected = Err(InvalidRun::Impossible(ITEM, 0));
            assert_eq!(decode(base_ns, &bytes), expected, "{why}");
        }
        assert_eq!(decode(0, &[2, 1, 1, 1]), Err(InvalidRun::LeftOver(ITEM, 1)));
    }
}
