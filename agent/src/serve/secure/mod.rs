//! Conversations under a key: who holds one, the handshake, and the records behind it.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, as [`unikprof_proto::secure`] has it. Nothing here
//! allocates, and what is secret is erased when it is dropped.

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
