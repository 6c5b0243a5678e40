//! Reads the interrupted stack and code: the only place where the agent reads memory that is not
//! its own.
#![allow(unsafe_code)]

use core::ops::Range;

use crate::ground::platform::Continuation;

/// The bytes of a frame record: the caller's frame pointer, then the return address.
pub const FRAME_RECORD: u64 = 16;

/// A stack with frame records.
pub trait ReadStack {
    /// The record at `fp` (the caller's frame pointer, the return address); `None` if it is
    /// misaligned or not wholly inside.
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]>;

    /// The word at `address`; `None` if it is misaligned or not wholly inside.
    fn word(&self, address: u64) -> Option<u64>;

    /// The address after the last byte.
    fn end(&self) -> u64;
}

impl<S: ReadStack> ReadStack for &S {
    #[inline]
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        (**self).frame_record(fp)
    }

    #[inline]
    fn word(&self, address: u64) -> Option<u64> {
        (**self).word(address)
    }

    #[inline]
    fn end(&self) -> u64 {
        (**self).end()
    }
}

/// The stacks that a walk may read.
pub trait Stacks {
    /// The type of one stack.
    type Stack: ReadStack;

    /// The stack that contains `address`; `None` if no known stack does.
    fn at(&self, address: u64) -> Option<Self::Stack>;

    /// The place where the walk continues after a chain of frames has ended with this stack pointer
    /// and frame pointer. See [`Platform::continuation`](crate::Platform::continuation).
    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation>;
}

/// The same stack for every address, or none.
impl<'s, S: ReadStack> Stacks for Option<&'s S> {
    type Stack = &'s S;

    #[inline]
    fn at(&self, _: u64) -> Option<Self::Stack> {
        *self
    }

    #[inline]
    fn continuation(&self, _: u64, _: u64) -> Option<Continuation> {
        None
    }
}

/// Memory that contains instructions.
pub trait ReadCode {
    /// The byte before `pc` and the four bytes from `pc` on; `None` if not all of them can be read.
    fn around(&self, pc: u64) -> Option<[u8; 5]>;
}

/// Reads no instructions.
impl ReadCode for () {
    #[inline]
    fn around(&self, _: u64) -> Option<[u8; 5]> {
        None
    }
}

/// A stack in this program's memory.
#[derive(Debug)]
pub struct StackMemory {
    /// The address of the first word.
    start: u64,
    /// The number of words.
    words: u64,
    /// The number of words that a frame record can begin with: all except the last.
    records: u64,
    end: u64,
}

impl StackMemory {
    /// The stack in `bounds`.
    ///
    /// # Safety
    /// All of `bounds` is mapped and readable for as long as this value lives. The words may change
    /// while they are read.
    pub unsafe fn new(bounds: Range<u64>) -> Self {
        let start = bounds.start.checked_next_multiple_of(8);
        let start = start.unwrap_or(bounds.end);
        let words = bounds.end.saturating_sub(start) / 8;
        Self { start, words, records: words.saturating_sub(1), end: bounds.end }
    }

    /// The index of the word at `address`. The rotation turns the low bits of a misaligned address
    /// into an index of at least 2^61, and an address below the start wraps around to one far
    /// behind the end. So one comparison decides whether a word lies inside the stack.
    #[inline]
    fn index(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).rotate_right(3)
    }
}

impl ReadStack for StackMemory {
    #[inline]
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        if self.index(fp) >= self.records {
            return None;
        }
        let words = core::ptr::with_exposed_provenance::<u64>(fp as usize);
        // SAFETY: aligned, and both words lie inside the bounds, which the caller of `new`
        // guarantees to be readable.
        unsafe { Some([read(words)?, read(words.add(1))?]) }
    }

    #[inline]
    fn word(&self, address: u64) -> Option<u64> {
        if self.index(address) >= self.words {
            return None;
        }
        let word = core::ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: as in `frame_record`, for one word.
        unsafe { read(word) }
    }

    #[inline]
    fn end(&self) -> u64 {
        self.end
    }
}

/// Reads a word of a stack, which its owner may change at any time.
///
/// # Safety
/// The word is readable.
#[cfg(not(unikprof_dropin))]
#[inline(always)]
unsafe fn read(word: *const u64) -> Option<u64> {
    // SAFETY: the caller's contract.
    Some(unsafe { word.read_volatile() })
}

/// The same in the drop-in, whose guest may have unmapped the word: `None` then. So is a word of
/// ones.
///
/// # Safety
/// The word is readable, or it has a page that is not mapped.
#[cfg(unikprof_dropin)]
#[inline(always)]
unsafe fn read(word: *const u64) -> Option<u64> {
    let value: u64;
    // SAFETY: the drop-in's function reads the word, and survives a page fault.
    unsafe {
        core::arch::asm!(
            "call read_stack_word",
            in("rdi") word,
            out("rax") value,
            options(readonly, preserves_flags)
        );
    }
    (value != u64::MAX).then_some(value)
}

/// Instructions in this program's memory.
#[derive(Debug)]
pub struct CodeMemory(Range<u64>);

impl CodeMemory {
    /// The code in `bounds`.
    ///
    /// # Safety
    /// All of `bounds` is mapped and readable for as long as this value lives.
    pub unsafe fn new(bounds: Range<u64>) -> Self {
        Self(bounds)
    }
}

impl ReadCode for CodeMemory {
    #[inline]
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        let start = pc.checked_sub(1)?;
        let end = pc.checked_add(4)?;
        if start < self.0.start || end > self.0.end {
            return None;
        }
        let bytes = core::ptr::with_exposed_provenance::<[u8; 5]>(start as usize);
        // SAFETY: inside the bounds, which the caller of `new` guarantees to be readable; bytes
        // need no alignment.
        Some(unsafe { bytes.read_volatile() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bounds: Range<u64>) -> StackMemory {
        // SAFETY: the tests below read only inside their own arrays.
        unsafe { StackMemory::new(bounds) }
    }

    #[test]
    fn only_whole_aligned_records_are_read() {
        let words = [1_u64, 2, 3, 4];
        let start = words.as_ptr().expose_provenance() as u64;
        let stack = memory(start..start + 32);
        assert_eq!(stack.frame_record(start), Some([1, 2]));
        assert_eq!(stack.frame_record(start + 16), Some([3, 4]));
        for outside in [0, start - 8, start + 4, start + 24, start + 32, u64::MAX, u64::MAX - 7] {
            assert_eq!(stack.frame_record(outside), None);
        }
        assert_eq!(stack.word(start), Some(1));
        assert_eq!(stack.word(start + 24), Some(4));
        for outside in [0, start - 8, start + 4, start + 32, u64::MAX - 7] {
            assert_eq!(stack.word(outside), None);
        }
    }

    #[test]
    fn code_is_read_inside_its_bounds_only() {
        let code = [1_u8, 2, 3, 4, 5, 6];
        let start = code.as_ptr().expose_provenance() as u64;
        // SAFETY: the bounds are those of `code`.
        let memory = unsafe { CodeMemory::new(start..start + 6) };
        assert_eq!(memory.around(start + 1), Some([1, 2, 3, 4, 5]));
        assert_eq!(memory.around(start + 2), Some([2, 3, 4, 5, 6]));
        for outside in [0, start, start + 3, u64::MAX - 2, u64::MAX] {
            assert_eq!(memory.around(outside), None);
        }
    }

    #[test]
    fn degenerate_bounds_hold_nothing() {
        for (start, end) in [(0, 0), (9, 23), (16, 8), (u64::MAX, 0), (0, 7), (!6, !0), (8, 0)] {
            let stack = memory(start..end);
            for fp in [0, 1, 7, 8, 9, 15, 16, 17, !7, !0] {
                assert_eq!(stack.frame_record(fp), None, "{start}..{end} at {fp:#x}");
                assert_eq!(stack.word(fp), None, "{start}..{end} at {fp:#x}");
            }
        }
    }

    /// Unaligned bounds contain the words that lie wholly inside.
    #[test]
    fn bounds_of_half_words_hold_whole_words() {
        let words = [1_u64, 2, 3, 4];
        let start = words.as_ptr().expose_provenance() as u64;
        let stack = memory(start + 1..start + 31);
        assert_eq!(stack.frame_record(start + 8), Some([2, 3]));
        assert_eq!([stack.word(start + 8), stack.word(start + 16)], [Some(2), Some(3)]);
        for outside in [start, start + 1, start + 9, start + 16, start + 24] {
            assert_eq!(stack.frame_record(outside), None);
        }
        for outside in [start, start + 1, start + 9, start + 24, start + 25] {
            assert_eq!(stack.word(outside), None);
        }
    }
}
