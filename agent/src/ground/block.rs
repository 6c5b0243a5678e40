//! The division of a memory block that the guest gives once, at start.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use crate::ground::sync::{AtomicU32, AtomicU64};

/// Types for which zeroed memory is a value. All of them are made of atomics alone.
///
/// # Safety
/// Every bit pattern of zeros is a value, and the value has no destructor to run.
pub(crate) unsafe trait Zeroed {}

// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU64 {}

/// Takes `count` zeroed values from the front of `block`.
pub(crate) fn take<'m, T: Zeroed>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
) -> Option<&'m [T]> {
    let padding = block.as_ptr().align_offset(align_of::<T>());
    let bytes = count.checked_mul(size_of::<T>())?;
    let whole = core::mem::take(block);
    let (_, aligned) = whole.split_at_mut_checked(padding)?;
    let (values, rest) = aligned.split_at_mut_checked(bytes)?;
    *block = rest;
    values.fill(MaybeUninit::new(0));
    // SAFETY: the bytes are aligned for T, as many as `count` values take, all zero, which T says
    // is a value, and borrowed exclusively for 'm.
    Some(unsafe { core::slice::from_raw_parts(values.as_ptr().cast::<T>(), count) })
}
