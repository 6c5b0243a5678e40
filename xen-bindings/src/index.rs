//! Access to indices that the two sides of a ring share.
//!
//! Why each order suffices: docs/design/decisions.md#memory-order. `tests/rings_model.rs` checks
//! it with the code of the rings.

use crate::sync::{AtomicU32, Ordering, fence};

/// Loads an index; what the other side wrote before it stored the index is visible then.
#[inline]
pub(crate) fn load(index: &AtomicU32) -> u32 {
    index.load(Ordering::Acquire)
}

/// Stores an index; it becomes visible after what was read and written before.
#[inline]
pub(crate) fn store(index: &AtomicU32, value: u32) {
    index.store(value, Ordering::Release);
}

/// Makes what was stored before visible before anything is loaded after it: between publishing and
/// looking whether the other side sleeps, and between asking for a notification and looking once
/// more.
#[inline]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}
