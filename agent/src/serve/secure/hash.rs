//! BLAKE2s, and its use in the Noise Protocol Framework. Section and function names are those of
//! its revision 34.

use blake2::{Blake2s256, Digest};

use super::secret::Secret;

/// The hash's output, in bytes.
pub(super) const HASH: usize = 32;
/// The hash's block, in bytes.
const BLOCK: usize = 64;

/// Hashes the concatenation of all parts. Out of line, so that a guest has the hash's buffer
/// handling only once.
#[inline(never)]
pub(super) fn digest(parts: &[&[u8]]) -> [u8; HASH] {
    let mut hash = Blake2s256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// `HKDF` with three outputs; with two outputs, those would be the first two.
#[inline(never)]
pub(super) fn derive(chaining_key: &Secret, material: &[u8]) -> [Secret; 3] {
    let temporary = hmac(chaining_key, material, &[]);
    let first = hmac(&temporary, &[1], &[]);
    let second = hmac(&temporary, &first.0, &[2]);
    let third = hmac(&temporary, &second.0, &[3]);
    [first, second, third]
}

/// `HMAC-HASH` of two parts, RFC 2104. A key of 32 bytes is shorter than a block.
#[inline(never)]
fn hmac(key: &Secret, part: &[u8], more: &[u8]) -> Secret {
    let mut pad = Secret([0x36; BLOCK]);
    pad.0.iter_mut().zip(key.0).for_each(|(pad, key)| *pad ^= key);
    let inner: Secret = Secret(digest(&[&pad.0, part, more]));
    pad.0.iter_mut().for_each(|pad| *pad ^= 0x36 ^ 0x5c);
    Secret(digest(&[&pad.0, &inner.0]))
}
