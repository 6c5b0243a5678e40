//! Encrypted conversations: what is sent, and what the handshake authenticates.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` with a 32-byte key that both sides have:
//!
//! 1. The client sends its preamble, with [`security::NOISE`](crate::code::security::NOISE), and a
//!    [`Handshake`](crate::message::Handshake) frame at once, without waiting for the agent's
//!    preamble. Both travel in the clear. The payload is empty; the [`prologue`] binds the client's
//!    preamble and the key's id.
//! 2. The agent sends its preamble in the clear when the connection opens, and answers the
//!    handshake with a [`HandshakeReply`](crate::message::HandshakeReply). Its payload is the
//!    agent's preamble, sealed. The client compares it with the one that it received in the clear
//!    and closes the connection if they differ, before it sends anything else.
//! 3. After that both sides send only records: a length in bytes (u16, little endian), and that
//!    many bytes of ciphertext including its [`TAG`]. The concatenated plaintexts are the stream of
//!    frames; a frame may span records.
//!
//! If a preamble was altered on the way, the handshake fails: for the client's preamble at the
//! agent, with the first message; for the agent's at the client, with the second. Both handshake
//! messages have the same form in all protocol versions, because the client sends the first one
//! before it knows the agent's versions.
//!
//! Anybody who has seen a `Handshake` can replay it. Therefore a client is authenticated, and gets
//! its role, only when its first record has been decrypted.
//!
//! This crate has no cryptography of its own: both sides use their own implementation.

use core::fmt;

use crate::preamble;

/// The Noise protocol's name.
pub const NAME: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The length of a key in bytes.
pub const KEY: usize = 32;

/// The prefix of a key as text, in files and configurations of both sides; its bytes follow as
/// hexadecimal digits in lower case.
pub const KEY_PREFIX: &str = "unikprof-key-1:";

/// The length of a key's id in bytes: the first ones of `BLAKE2s-256(`[`KEY_ID_CONTEXT`]` || key)`.
pub const KEY_ID: usize = 8;

/// The id of a key: not secret, and sent unencrypted. Shown as 16 hexadecimal digits.
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

/// The prefix that is hashed before a key to make its id.
pub const KEY_ID_CONTEXT: &[u8] = b"unikprof key id 1";

/// The length of the tag at the end of a ciphertext.
pub const TAG: usize = 16;

/// The length of the header of a ciphertext.
pub const RECORD_HEADER: usize = 2;

/// The maximum plaintext length of an agent's record.
pub const MAX_ANSWER: usize = 4096;

/// The maximum plaintext length of a client's record.
pub const MAX_REQUEST: usize = 1024;

/// The length of a prologue.
pub const PROLOGUE: usize = preamble::LENGTH + KEY_ID;

/// Additional data that the first message authenticates: the client's preamble as sent, and the id
/// of the key. If either was altered on the way, the handshake fails.
pub fn prologue(client: &[u8; preamble::LENGTH], key: &[u8; KEY_ID]) -> [u8; PROLOGUE] {
    let mut bytes = [0; PROLOGUE];
    let (preamble, id) = bytes.split_at_mut(preamble::LENGTH);
    preamble.copy_from_slice(client);
    id.copy_from_slice(key);
    bytes
}

/// The length of the ciphertext in a record's header; `None` if it is invalid: shorter than a tag
/// and one byte, or longer than a ciphertext of `most` bytes.
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
