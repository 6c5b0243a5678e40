//! Encrypted conversations: keys, the handshake, and the records after it.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, as described in [`unikprof_proto::secure`]. Nothing
//! here allocates, and secrets are erased when they are dropped.

mod ephemeral;
#[cfg(all(test, not(loom)))]
mod erasure_tests;
mod hash;
mod keys;
mod noise;
mod pace;
mod records;
mod secret;

pub use keys::{Key, KeyError, KeyId, Keys, KeysError, MAX_KEYS, Role};

pub(crate) use ephemeral::Ephemeral;
pub(crate) use noise::{Responder, Transport};
pub(crate) use pace::{Pace, Turn};
pub(crate) use records::{BadRecord, Incoming};
