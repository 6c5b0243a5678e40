//! Counts of stacks: the compact encoding of the number of samples of each.
//!
//! A run is a sequence of pairs of varints: the distance of the stack's [number](crate::nodes) from
//! that of the previous pair, at least 1, and its nonzero count. Numbers ascend.

use crate::run::{self, InvalidRun};
use crate::varint::{Output, take_varint};

/// The maximum length of a pair in bytes.
pub const MAX_PAIR_BYTES: usize = 20;

/// The name of a run's items in errors.
const ITEM: &str = "count";

/// Encodes a run of counts into a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    after: u64,
    output: Output<'a>,
}

impl<'a> Encoder<'a> {
    /// Begins a run whose first distance is counted from the number `after`.
    pub fn new(after: u64, buffer: &'a mut [u8]) -> Self {
        Self { after, output: Output::new(buffer) }
    }

    /// Whether another pair certainly fits.
    pub fn has_room(&self) -> bool {
        self.output.room() >= MAX_PAIR_BYTES
    }

    /// Adds the next pair. Call it only while there [is room](Self::has_room), with a number above
    /// the previous one and a nonzero count.
    pub fn push(&mut self, number: u64, count: u64) {
        self.output.varint(number.wrapping_sub(self.after));
        self.output.varint(count);
        self.after = number;
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Decodes a run of `count` pairs whose first distance is counted from `after`, and passes each
/// number with its count to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid pair, after `visit` has seen those before it.
pub fn decode(
    after: u64,
    count: u32,
    mut payload: &[u8],
    mut visit: impl FnMut(u64, u64),
) -> Result<(), InvalidRun> {
    let mut number = after;
    for index in 0..count {
        let mut value = || take_varint(&mut payload).ok_or(InvalidRun::Cut(ITEM, u64::from(index)));
        let (distance, count) = (value()?, value()?);
        let next = number.checked_add(distance);
        number = next
            .filter(|_| distance != 0 && count != 0)
            .ok_or(InvalidRun::Impossible(ITEM, u64::from(index)))?;
        visit(number, count);
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
    fn pairs_come_back_and_small_ones_take_two_bytes() {
        let pairs = [(1001, 1), (1002, 127), (1100, 2), (u64::MAX, u64::MAX)];
        let mut buffer = [0; 128];
        let mut encoder = Encoder::new(1000, &mut buffer);
        let mut lengths = Vec::new();
        for (number, count) in pairs {
            assert!(encoder.has_room());
            encoder.push(number, count);
            lengths.push(encoder.output.length());
        }
        assert_eq!(lengths, [2, 4, 6, 26]);
        let length = encoder.finish();
        let mut back = Vec::new();
        decode(1000, 4, &buffer[..length], |number, count| {
            back.push((number, count));
        })
        .unwrap();
        assert_eq!(back, pairs);
    }

    #[test]
    fn hostile_runs_are_errors() {
        let decode = |after, bytes: &[u8]| decode(after, 1, bytes, |_, _| ());
        for cut in [&[][..], &[1]] {
            assert_eq!(decode(0, cut), Err(InvalidRun::Cut(ITEM, 0)));
        }
        for (after, pair, why) in [
            (0, [0, 1], "a distance of zero"),
            (0, [1, 0], "a count of zero"),
            (u64::MAX, [1, 1], "beyond 64 bits"),
        ] {
            let expected = Err(InvalidRun::Impossible(ITEM, 0));
            assert_eq!(decode(after, &pair), expected, "{why}");
        }
        let left = decode(0, &[1, 1, 1]);
        assert_eq!(left, Err(InvalidRun::LeftOver(ITEM, 1)));
    }
}
