//! Memory between two pages that may not be touched: a read beside it ends the process.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

/// Bytes of the readable memory: one page.
pub(crate) const SIZE: usize = 4096;

/// A readable page between two that are not.
pub(crate) struct Guarded {
    start: *mut u8,
}

impl Guarded {
    pub(crate) fn new() -> Self {
        let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at no given place.
        let whole = unsafe { libc::mmap(ptr::null_mut(), 3 * SIZE, none, private, -1, 0) };
        assert_ne!(whole, libc::MAP_FAILED, "mmap failed");
        let start = whole.cast::<u8>().wrapping_add(SIZE);
        // SAFETY: the second of the three pages just mapped.
        let failed =
            unsafe { libc::mprotect(start.cast(), SIZE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(failed, 0, "mprotect failed");
        Self { start }
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        let start = self.start.expose_provenance() as u64;
        start..start + SIZE as u64
    }

    /// Writes a word at an offset in bytes.
    pub(crate) fn put(&mut self, offset: usize, word: u64) {
        let word = word.to_ne_bytes();
        assert!(offset <= SIZE - word.len());
        // SAFETY: within the page, which is writable and borrowed exclusively.
        unsafe { ptr::copy_nonoverlapping(word.as_ptr(), self.start.add(offset), word.len()) };
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the three pages mapped in `new`, to which nothing refers any more.
        unsafe { libc::munmap(self.start.wrapping_sub(SIZE).cast(), 3 * SIZE) };
    }
}
