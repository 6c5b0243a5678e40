//! Reading the interrupted stack: the one place where the agent looks at foreign memory.
#![allow(unsafe_code)]

use core::ops::Range;

/// A frame record takes 16 bytes: the caller's frame pointer, then the return address.
pub const FRAME_RECORD: u64 = 16;

/// Memory with frame records in it.
pub trait ReadStack {
    /// The record at `fp` (the caller's frame pointer, the return address), or `None` where it is
    /// misaligned or not wholly inside.
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]>;

    /// The address after the last byte.
    fn end(&self) -> u64;
}

/// A stack in this program's memory.
#[derive(Debug)]
pub struct StackMemory {
    start: u64,
    last_record: u64,
    end: u64,
}

impl StackMemory {
    /// The stack in `bounds`.
    ///
    /// # Safety
    /// All of `bounds` is mapped and readable for as long as this value lives. The words may change
    /// while they are read.
    pub unsafe fn new(bounds: Range<u64>) -> Self {
        // A stack too small for one record gets bounds that no record is inside of.
        let holds_one = bounds
            .end
            .checked_sub(bounds.start)
            .is_some_and(|size| size >= FRAME_RECORD);
        let (start, last_record) = if holds_one {
            (bounds.start, bounds.end - FRAME_RECORD)
        } else {
            (1, 0)
        };
        Self {
            start,
            last_record,
            end: bounds.end,
        }
    }
}

impl ReadStack for StackMemory {
    #[inline]
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        if fp & 7 != 0 || fp < self.start || fp > self.last_record {
            return None;
        }
        let words = core::ptr::with_exposed_provenance::<u64>(fp as usize);
        // SAFETY: aligned, and both words inside the bounds whose readability the caller of `new`
        // vouched for. Volatile, since the stack's owner may change them at any moment.
        Some(unsafe { [words.read_volatile(), words.add(1).read_volatile()] })
    }

    #[inline]
    fn end(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bounds: Range<u64>) -> StackMemory {
        // SAFETY: the tests below read only inside an array of their own.
        unsafe { StackMemory::new(bounds) }
    }

    #[test]
    fn only_whole_aligned_records_are_read() {
        let words = [1_u64, 2, 3, 4];
        let start = words.as_ptr().expose_provenance() as u64;
        let stack = memory(start..start + 32);
        assert_eq!(stack.frame_record(start), Some([1, 2]));
        assert_eq!(stack.frame_record(start + 16), Some([3, 4]));
        for outside in [
            0,
            start - 8,
            start + 4,
            start + 24,
            start + 32,
            u64::MAX,
            u64::MAX - 7,
        ] {
            assert_eq!(stack.frame_record(outside), None);
        }
    }

    #[test]
    fn degenerate_bounds_hold_nothing() {
        for (start, end) in [(0, 0), (8, 16), (16, 8), (u64::MAX, 0), (0, 15)] {
            let stack = memory(start..end);
            for fp in [0, 1, 8, 16, !7] {
                assert_eq!(stack.frame_record(fp), None, "{start}..{end} at {fp:#x}");
            }
        }
    }
}
