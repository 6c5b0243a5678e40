//! The allocator of the programs.
#![allow(unsafe_code, reason = "allocators are unsafe to implement and to call")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit_code;

/// The system's allocator. Where it has no more memory, the program ends with an error instead of
/// being aborted. Nothing is cleaned up, as after SIGKILL: a recording stays in the guest, and files
/// that are being written keep their temporary names.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: the system's allocator does everything, and callers have its obligations.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        got(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn got(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        end(size);
    }
    memory
}

/// Ends the program without an allocation: numbers are formatted in place, and no handlers run.
#[cold]
fn end(size: usize) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if !IS_ENDING.swap(true, Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "error: out of memory: no room for {size} bytes more");
    }
    signal_hook::low_level::exit(exit_code::OTHER.into())
}
