//! Divides a memory block, which the guest gives once at start, into slices.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

/// Takes room for `count` values from the front of `block`. `None` if the block is too small.
fn room<'m, T>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
) -> Option<&'m mut [MaybeUninit<T>]> {
    let padding = block.as_ptr().align_offset(align_of::<T>());
    let bytes = count.checked_mul(size_of::<T>())?;
    let whole = core::mem::take(block);
    let (_, aligned) = whole.split_at_mut_checked(padding)?;
    let (values, rest) = aligned.split_at_mut_checked(bytes)?;
    *block = rest;
    // SAFETY: the bytes are aligned for T, large enough for `count` values, and borrowed exclusively for 'm.
    Some(unsafe { core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), count) })
}

/// Takes `count` values from the front of `block` and sets their bytes to zero. `None` if the block is too
/// small.
#[cfg(not(loom))]
pub(crate) fn take<'m, T: bytemuck::Zeroable>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
) -> Option<&'m [T]> {
    let values = room(block, count)?;
    values.fill_with(MaybeUninit::zeroed);
    // SAFETY: all bytes are zero, which `bytemuck::Zeroable` guarantees to be a valid T.
    Some(unsafe { values.assume_init_ref() })
}

/// Takes nothing: an atomic of the model checker is not a plain integer, so its models allocate their cells.
#[cfg(loom)]
pub(crate) fn take<'m, T>(_: &mut &'m mut [MaybeUninit<u8>], _: usize) -> Option<&'m [T]> {
    None
}

/// Takes `count` values from the front of `block`, each of which `make` returns for its index. `None` if the block is too
/// small, or if `make` returns `None`.
pub(crate) fn take_with<'m, T: Copy>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
    mut make: impl FnMut(usize) -> Option<T>,
) -> Option<&'m [T]> {
    let values = room(block, count)?;
    for (index, value) in values.iter_mut().enumerate() {
        value.write(make(index)?);
    }
    // SAFETY: all of them were written.
    Some(unsafe { values.assume_init_ref() })
}
