//! The atomic types: the processor's, or loom's under the model checker.
//!
//! Why each order suffices: docs/design/decisions.md#memory-order.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Adds to a cell that only the caller writes, without a locked instruction. Wraps: 2^64 ns are 584
/// years.
#[inline]
pub(crate) fn add_owned(cell: &AtomicU64, amount: u64) {
    let sum = cell.load(Ordering::Relaxed).wrapping_add(amount);
    cell.store(sum, Ordering::Relaxed);
}

/// Prefetches the cache lines of `value`. A prefetch neither faults nor waits.
#[allow(unsafe_code, reason = "the instruction is an intrinsic")]
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    const LINE: usize = 64;
    let start = core::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86_64 has SSE; the address is not read, and lies inside `value`.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(offset));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = start.wrapping_add(offset);
    }
}
