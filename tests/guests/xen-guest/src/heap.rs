//! The heap: blocks of powers of two, one list of free blocks for each size.
//!
//! A block is taken from its list, or split from the next larger one. Freed blocks go back to their
//! list and are not joined. This wastes up to half of a block, but takes a bounded number of steps.
//! The lock is held with interrupts on, so the upcall must not allocate.

#![allow(unsafe_code, reason = "an allocator hands out raw memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::{self, NonNull};

use crate::lock::SpinLock;

#[cfg(feature = "heap")]
use {crate::profiler::GuestPlatform, unikprof_agent::Agent, unikprof_agent::heap::Sampled};

/// Binary logarithm of the smallest block.
const SMALLEST: usize = 4;
/// Binary logarithm of the largest block, 2 GiB.
const LARGEST: usize = 31;

static FREE: SpinLock<FreeLists> = SpinLock::new(FreeLists { heads: [None; LARGEST + 1] });

#[cfg(not(feature = "heap"))]
#[global_allocator]
static HEAP: Heap = Heap;

#[cfg(feature = "heap")]
#[global_allocator]
static HEAP: Sampled<Heap, GuestPlatform> = Sampled::new(Heap);

/// Reports all allocations and frees from now on to the profiler.
#[cfg(feature = "heap")]
pub(crate) fn report_to(agent: &'static Agent<'static, GuestPlatform>) {
    HEAP.attach(agent);
}

/// Adds memory to the heap.
///
/// # Safety
///
/// `memory` must be mapped, writable, and used only by the heap from now on.
pub(crate) unsafe fn give(memory: Range<u64>) {
    let align = 1 << SMALLEST;
    let mut start = memory.start.next_multiple_of(align);
    let end = memory.end - memory.end % align;
    while start < end {
        // The largest power of two that is aligned here and fits.
        let by_address = start.trailing_zeros().min(LARGEST as u32);
        let order = by_address.min((end - start).ilog2()) as usize;
        if let Some(block) = NonNull::new(start as *mut Block) {
            // SAFETY: the block is inside the caller's memory.
            unsafe { FREE.lock().put(block, order) };
        }
        start += 1 << order;
    }
}

struct Heap;

struct Block {
    next: Option<NonNull<Block>>,
}

struct FreeLists {
    heads: [Option<NonNull<Block>>; LARGEST + 1],
}

// SAFETY: the heap owns the blocks, which belong to no particular vCPU.
unsafe impl Send for FreeLists {}

impl FreeLists {
    /// # Safety
    ///
    /// `block` must be free memory of `2^order` bytes, aligned to its size and owned by the caller.
    unsafe fn put(&mut self, block: NonNull<Block>, order: usize) {
        // SAFETY: a block is at least as large as its link, and aligned.
        unsafe { block.write(Block { next: self.heads[order] }) };
        self.heads[order] = Some(block);
    }

    fn take(&mut self, order: usize) -> Option<NonNull<Block>> {
        let found = (order..=LARGEST).find(|&order| self.heads[order].is_some())?;
        let block = self.heads[found]?;
        // SAFETY: blocks in the lists hold their link.
        self.heads[found] = unsafe { block.read() }.next;
        for half in (order..found).rev() {
            // SAFETY: the upper half of the block that is kept, aligned to its size.
            unsafe { self.put(block.byte_add(1 << half), half) };
        }
        Some(block)
    }
}

/// Binary logarithm of the block for a layout: blocks are aligned to their size.
fn order(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST);
    let order = size.checked_next_power_of_two()?.ilog2() as usize;
    (order <= LARGEST).then_some(order)
}

// SAFETY: `take` gives each block to one caller, with the requested size and alignment.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        order(layout)
            .and_then(|order| FREE.lock().take(order))
            .map_or(ptr::null_mut(), |block| block.as_ptr().cast())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let (Some(block), Some(order)) = (NonNull::new(memory.cast()), order(layout)) {
            // SAFETY: by the contract of `dealloc` the block came from `alloc` with this layout.
            unsafe { FREE.lock().put(block, order) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the rounded size does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if order(layout) == order(new_layout) {
            return memory;
        }
        // SAFETY: the new block has at least the smaller of both sizes, and does not overlap the
        // old one.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                ptr::copy_nonoverlapping(memory, new, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
            new
        }
    }
}
