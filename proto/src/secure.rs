//! Conversations under a key: what is sent, and what the handshake authenticates.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` with a 32-byte key that both sides hold:
//!
//! 1. The client sends its preamble, with [`security::NOISE`](crate::code::security::NOISE), and a
//!    [`Handshake`](crate::message::Handshake) frame at once, without waiting for the agent's preamble. Both travel
//!    in the clear. The payload is empty; the [`prologue`] binds the client's preamble and the key's id.
//! 2. The agent sends its preamble in the clear when the connection opens, and answers the handshake with a
//!    [`HandshakeReply`](crate::message::HandshakeReply). Its payload is the agent's preamble, sealed. The client
//!    compares it with the one that it received in the clear and closes the connection if they differ, before it
//!    sends anything else.
//! 3. Then only records, in both directions: a length in bytes (u16, little endian), and so many bytes
//!    of ciphertext with its [`TAG`]. The plaintexts, one after the other, are the stream of frames;
//!    a frame may span records.
//!
//! A preamble that was altered on the way therefore fails the handshake: the client's at the agent, in the first
//! message; the agent's at the client, in the second. The forms of both handshake messages are the same in all
//! protocol versions, because the client sends the first before it knows the agent's versions.
//!
//! A `Handshake` can be replayed by anybody who has seen one. So a client is somebody only when
//! its first record has been opened: then it has its role, not before.
//!
//! The crate has no cryptography of its own: both sides bring an implementation.

use core::fmt;

use crate::preamble;

/// The Noise protocol's name.
pub const NAME: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The length of a key in bytes.
pub const KEY: usize = 32;

/// What a key begins with as text, in both sides' files and configurations; its bytes follow as
/// hexadecimal digits in lower case.
pub const KEY_PREFIX: &str = "unikprof-key-1:";

/// The length of a key's id in bytes: the first ones of `BLAKE2s-256(`[`KEY_ID_CONTEXT`]` || key)`.
pub const KEY_ID: usize = 8;

/// Which key is meant: not secret, and it travels in the clear. Shown as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; KEY_ID]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is hashed before a key, for its id.
pub const KEY_ID_CONTEXT: &[u8] = b"unikprof key id 1";

/// The length of the tag at the end of a ciphertext.
pub const TAG: usize = 16;

/// The length of what stands before a ciphertext.
pub const RECORD_HEADER: usize = 2;

/// The most plaintext in a record that an agent sends.
pub const MAX_ANSWER: usize = 4096;

/// The most plaintext in a record that a client sends.
pub const MAX_REQUEST: usize = 1024;

/// The length of a prologue.
pub const PROLOGUE: usize = preamble::LENGTH + KEY_ID;

/// The data that the first message authenticates beside itself: the client's preamble, as sent, and the id of
/// the key. If either was altered on the way, the handshake fails.
pub fn prologue(client: &[u8; preamble::LENGTH], key: &[u8; KEY_ID]) -> [u8; PROLOGUE] {
    let mut bytes = [0; PROLOGUE];
    let (preamble, id) = bytes.split_at_mut(preamble::LENGTH);
    preamble.copy_from_slice(client);
    id.copy_from_slice(key);
    bytes
}

/// The length of the ciphertext that a record's header announces; `None` where it cannot be: shorter
/// than a tag with one byte, or longer than `most` bytes of plaintext.
///
/// ```
/// use unikprof_proto::secure::{MAX_REQUEST, TAG, ciphertext};
/// assert_eq!(ciphertext([20, 0], MAX_REQUEST), Some(20));
/// assert_eq!(ciphertext([16, 0], MAX_REQUEST), None);
/// assert_eq!(ciphertext([0xff, 0xff], MAX_REQUEST), None);
/// ```
pub fn ciphertext(header: [u8; RECORD_HEADER], most: usize) -> Option<usize> {
    let length = usize::from(u16::from_le_bytes(header));
    (length > TAG && length <= most + TAG).then_some(length)
}
