//! Bytes that are erased when they are dropped.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Secret bytes; by default the length of a key or a hash.
pub(crate) struct Secret<const BYTES: usize = 32>(pub(super) [u8; BYTES]);

impl<const BYTES: usize> Zeroize for Secret<BYTES> {
    #[inline]
    fn zeroize(&mut self) {
        erase(&mut self.0);
    }
}

impl<const BYTES: usize> Drop for Secret<BYTES> {
    #[inline]
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl<const BYTES: usize> ZeroizeOnDrop for Secret<BYTES> {}

/// Out of line: it compiles to one store per byte, and secrets are dropped in many places.
#[inline(never)]
fn erase(bytes: &mut [u8]) {
    bytes.zeroize();
}
