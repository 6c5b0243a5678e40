//! Divides a memory block, which the guest gives once at start, into slices.
#![allow(unsafe_code)]

use core::alloc::Layout;
use core::mem::MaybeUninit;

/// Takes room for `count` values of `layout` from the front of `block`. `None` if the block is too
/// small. Not generic, so that all types share one copy.
#[inline(never)]
fn room<'m>(
    block: &mut &'m mut [MaybeUninit<u8>],
    layout: Layout,
    count: usize,
) -> Option<&'m mut [MaybeUninit<u8>]> {
    let padding = block.as_ptr().addr().wrapping_neg() & (layout.align() - 1);
    let bytes = count.checked_mul(layout.size())?;
    let whole = core::mem::take(block);
    let (_, aligned) = whole.split_at_mut_checked(padding)?;
    let (values, rest) = aligned.split_at_mut_checked(bytes)?;
    *block = rest;
    Some(values)
}

/// Takes `count` values from the front of `block` and sets their bytes to zero. `None` if the block
/// is too small.
#[cfg(not(loom))]
pub(crate) fn take<'m, T: bytemuck::Zeroable>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
) -> Option<&'m [T]> {
    let bytes = room(block, Layout::new::<T>(), count)?;
    bytes.fill(MaybeUninit::new(0));
    // SAFETY: the bytes are aligned for T, large enough for `count` values, and borrowed
    // exclusively for 'm. All of them are zero, which `bytemuck::Zeroable` guarantees to be a valid
    // T. The pointer comes from the exclusive borrow: T may have atomics, which a pointer from
    // `as_ptr` must not write.
    Some(unsafe { core::slice::from_raw_parts(bytes.as_mut_ptr().cast(), count) })
}

/// Takes nothing: an atomic of the model checker is not a plain integer, so its models allocate
/// their cells.
#[cfg(loom)]
pub(crate) fn take<'m, T>(_: &mut &'m mut [MaybeUninit<u8>], _: usize) -> Option<&'m [T]> {
    None
}

/// Takes `count` values from the front of `block`, each of which `make` returns for its index.
/// `None` if the block is too small, or if `make` returns `None`.
pub(crate) fn take_with<'m, T: Copy>(
    block: &mut &'m mut [MaybeUninit<u8>],
    count: usize,
    mut make: impl FnMut(usize) -> Option<T>,
) -> Option<&'m [T]> {
    let bytes = room(block, Layout::new::<T>(), count)?;
    let values = bytes.as_mut_ptr().cast::<MaybeUninit<T>>();
    // SAFETY: the bytes are aligned for T, large enough for `count` values, and borrowed
    // exclusively for 'm.
    let values = unsafe { core::slice::from_raw_parts_mut(values, count) };
    for (index, value) in values.iter_mut().enumerate() {
        value.write(make(index)?);
    }
    // SAFETY: all of them were written.
    Some(unsafe { values.assume_init_ref() })
}
