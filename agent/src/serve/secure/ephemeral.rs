//! Ephemeral secrets: one for each handshake.

use curve25519_dalek::MontgomeryPoint;
use subtle::ConstantTimeEq;

use super::hash::digest;
use super::keys::Key;
use super::secret::Secret;
use crate::ground::platform::Platform;

/// The prefix of the hashed data.
const CONTEXT: &[u8] = b"unikprof agent ephemeral 1";

/// The base point's coordinate.
const BASE: MontgomeryPoint = {
    let mut bytes = [0; 32];
    bytes[0] = 9;
    MontgomeryPoint(bytes)
};

/// An X25519 secret; erased when it is dropped.
pub(crate) struct Ephemeral(Secret);

impl Ephemeral {
    /// Draws a new secret: 256 bits from the platform's random source, hashed with the key, a
    /// number that is used only once, and the clocks. So a weak random source alone does not reveal
    /// the secret to somebody without the key. `None` if the source returns nothing.
    pub(crate) fn draw(platform: &dyn Platform, key: &Key, count: u64) -> Option<Self> {
        let mut random = Secret::<32>([0; 32]);
        for bytes in random.0.chunks_exact_mut(8) {
            bytes.copy_from_slice(&platform.random()?.to_le_bytes());
        }
        let numbers = [count, platform.now_ns(), platform.cycles()];
        let [count, now_ns, cycles] = numbers.map(u64::to_le_bytes);
        let parts: [&[u8]; 6] = [CONTEXT, key.bytes(), &random.0, &count, &now_ns, &cycles];
        Some(Self(Secret(digest(&parts))))
    }

    #[cfg(test)]
    pub(super) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Secret(bytes))
    }

    /// The public half.
    pub(super) fn public(&self) -> [u8; 32] {
        BASE.mul_clamped(self.0.0).to_bytes()
    }

    /// The secret shared with the peer; `None` if the peer's point has small order, which would
    /// make the secret known to everybody.
    pub(super) fn shared(&self, peer: [u8; 32]) -> Option<Secret> {
        let shared: Secret = Secret(MontgomeryPoint(peer).mul_clamped(self.0.0).to_bytes());
        let is_zero: bool = shared.0.ct_eq(&[0; 32]).into();
        (!is_zero).then_some(shared)
    }
}
