//! Ephemeral secrets: one for each handshake.

use blake2::{Blake2s256, Digest};
use curve25519_dalek::MontgomeryPoint;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::keys::Key;
use crate::platform::Platform;

/// What is hashed first.
const CONTEXT: &[u8] = b"unikprof agent ephemeral 1";

/// The base point's coordinate.
const BASE: MontgomeryPoint = {
    let mut bytes = [0; 32];
    bytes[0] = 9;
    MontgomeryPoint(bytes)
};

/// An X25519 secret; erased when it is dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Ephemeral([u8; 32]);

impl Ephemeral {
    /// A new secret: 256 bits of the platform's randomness, hashed with the key, a number that is never
    /// the same, and the clocks, so that a source that is worse than it says does not give it away
    /// to somebody without the key. `None` where the source does not answer.
    pub(crate) fn draw<P: Platform>(platform: &P, key: &Key, count: u64) -> Option<Self> {
        let mut hash = Blake2s256::new()
            .chain_update(CONTEXT)
            .chain_update(key.bytes());
        for _ in 0..4 {
            hash.update(platform.random()?.to_le_bytes());
        }
        for number in [count, platform.now_ns(), platform.cycles()] {
            hash.update(number.to_le_bytes());
        }
        let mut secret = Self([0; 32]);
        hash.finalize_into((&mut secret.0).into());
        Some(secret)
    }

    #[cfg(test)]
    pub(super) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The public half.
    pub(super) fn public(&self) -> [u8; 32] {
        BASE.mul_clamped(self.0).to_bytes()
    }

    /// The secret shared with the peer; `None` where the peer's point is one of the few that make it
    /// known to everybody.
    pub(super) fn shared(&self, peer: [u8; 32]) -> Option<Shared> {
        let shared = Shared(MontgomeryPoint(peer).mul_clamped(self.0).to_bytes());
        let is_zero: bool = shared.0.ct_eq(&[0; 32]).into();
        (!is_zero).then_some(shared)
    }
}

/// A shared secret; erased when it is dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Shared(pub(super) [u8; 32]);
