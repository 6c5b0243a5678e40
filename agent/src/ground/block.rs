//! Divides a memory block, which the guest gives once at start, into slices of atomics.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

/// Takes `count` values from the front of `block` and sets their bytes to zero. `None` if the block is too
/// small.
#[cfg(not(loom))]
pub(crate) fn take<'m, T: bytemuck::Zeroable>(
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
    // SAFETY: the bytes are aligned for T, large enough for `count` values, and borrowed exclusively for 'm.
    // All are zero, which `bytemuck::Zeroable` guarantees to be a valid T.
    Some(unsafe { core::slice::from_raw_parts(values.as_ptr().cast::<T>(), count) })
}

/// Takes nothing: an atomic of the model checker is not a plain integer, so its models allocate their cells.
#[cfg(loom)]
pub(crate) fn take<'m, T>(_: &mut &'m mut [MaybeUninit<u8>], _: usize) -> Option<&'m [T]> {
    None
}
