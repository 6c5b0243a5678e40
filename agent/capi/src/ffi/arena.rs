//! Allocates from the front of the memory block that C gives.

use core::mem::MaybeUninit;

/// The unused rest of the block.
pub(super) struct Arena {
    next: *mut u8,
    left: usize,
}

impl Arena {
    /// # Safety
    ///
    /// `length` bytes at `memory` are readable and writable, and nothing else accesses them as long
    /// as anything from the arena is in use.
    pub(super) unsafe fn new(memory: *mut u8, length: usize) -> Self {
        Self { next: memory, left: length }
    }

    /// Room for `count` values; `None` if the rest is too short.
    pub(super) fn places<T>(&mut self, count: usize) -> Option<&'static mut [MaybeUninit<T>]> {
        let padding = self.next.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>())?;
        let whole = padding.checked_add(bytes)?;
        self.left = self.left.checked_sub(whole)?;
        let start = self.next.wrapping_add(padding);
        self.next = self.next.wrapping_add(whole);
        // SAFETY: aligned, inside the block of `new`, and returned only once.
        Some(unsafe { core::slice::from_raw_parts_mut(start.cast(), count) })
    }

    /// Room for one value.
    pub(super) fn place<T>(&mut self) -> Option<&'static mut MaybeUninit<T>> {
        self.places(1)?.first_mut()
    }

    /// A copy of `bytes`.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Option<&'static [u8]> {
        Some(self.places(bytes.len())?.write_copy_of_slice(bytes))
    }

    /// A copy of `text`.
    pub(super) fn copy_text(&mut self, text: &str) -> Option<&'static str> {
        core::str::from_utf8(self.copy(text.as_bytes())?).ok()
    }

    /// The whole rest.
    pub(super) fn rest(mut self) -> &'static mut [MaybeUninit<u8>] {
        self.places(self.left).unwrap_or_default()
    }
}
