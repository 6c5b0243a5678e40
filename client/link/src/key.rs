//! The key that a client and an agent share: its text, its id, and the files it is kept in.
//!
//! A key is 32 random bytes. As text it is `unikprof-key-1:` and 64 hexadecimal digits in lower
//! case, on both sides. What a key allows is the guest's matter: its configuration names the role
//! of each.
//!
//! A [`Key`] is erased from memory when it is dropped, and neither [`Debug`](fmt::Debug) nor any
//! error shows a part of it.
//!
//! ```
//! use unikprof_link::key::Key;
//!
//! let key = Key::generate()?;
//! assert_eq!(key.id().to_string().len(), 16);
//! assert_eq!(format!("{key:?}"), format!("Key({})", key.id()));
//! # Ok::<(), unikprof_link::key::NoRandomness>(())
//! ```

mod file;

use std::fmt;

use blake2::{Blake2s256, Digest as _};
use thiserror::Error;
pub(crate) use unikprof_proto::secure::KeyId;
use unikprof_proto::secure::{KEY, KEY_ID, KEY_ID_CONTEXT, KEY_PREFIX as PREFIX};
use zeroize::Zeroizing;

pub use file::{KeyFileError, Role};

/// What the text of a key of any version begins with.
const ANY_VERSION: &[u8] = b"unikprof-key-";

/// A key that a client and an agent share; erased when dropped.
pub struct Key {
    // In a box, so that moving the key leaves no copies behind.
    secret: Box<Zeroizing<[u8; KEY]>>,
    id: KeyId,
}

/// Why a line is not a key; does not show the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyFormatError {
    /// It begins otherwise.
    #[error("expected a key that begins with `{PREFIX}`")]
    Prefix,
    /// It is a key of another version.
    #[error("the key has another version; this client supports keys that begin with `{PREFIX}`")]
    Version,
    /// There are too few or too many digits.
    #[error("expected {} hexadecimal digits after `{PREFIX}`, found {found} characters", 2 * KEY)]
    Length {
        /// How many there are.
        found: usize,
    },
    /// A character is no digit.
    #[error("expected the digits 0 to 9 and a to f (lower case); character {at} is another one")]
    Digit {
        /// Which, from 1, of the whole line.
        at: usize,
    },
}

/// The system has no random numbers to make a key of.
#[derive(Debug, Error)]
#[error("cannot generate a key: the system provides no random numbers: {0}")]
pub struct NoRandomness(getrandom::Error);

impl Key {
    /// A new key, from the system's random numbers.
    pub fn generate() -> Result<Key, NoRandomness> {
        let mut secret = Box::new(Zeroizing::new([0; KEY]));
        getrandom::fill(secret.as_mut_slice()).map_err(NoRandomness)?;
        Ok(Key::new(secret))
    }

    /// The key that a line says.
    ///
    /// ```
    /// use unikprof_link::key::{Key, KeyFormatError};
    ///
    /// let key = Key::parse(format!("unikprof-key-1:{}", "07".repeat(32)).as_bytes())?;
    /// assert_eq!(key.id().to_string(), "070251f482d7cc17");
    /// # Ok::<(), KeyFormatError>(())
    /// ```
    pub fn parse(line: &[u8]) -> Result<Key, KeyFormatError> {
        let Some(digits) = line.strip_prefix(PREFIX.as_bytes()) else {
            return Err(if line.starts_with(ANY_VERSION) {
                KeyFormatError::Version
            } else {
                KeyFormatError::Prefix
            });
        };
        if digits.len() != 2 * KEY {
            return Err(KeyFormatError::Length { found: digits.len() });
        }
        let mut secret = Box::new(Zeroizing::new([0; KEY]));
        for (at, digit) in digits.iter().enumerate() {
            let value =
                nibble(*digit).ok_or(KeyFormatError::Digit { at: PREFIX.len() + at + 1 })?;
            secret[at / 2] = secret[at / 2] << 4 | value;
        }
        Ok(Key::new(secret))
    }

    fn new(secret: Box<Zeroizing<[u8; KEY]>>) -> Key {
        let digest = Blake2s256::new()
            .chain_update(KEY_ID_CONTEXT)
            .chain_update(secret.as_slice())
            .finalize();
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&digest[..KEY_ID]);
        Key { secret, id: KeyId(id) }
    }

    /// Its id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Its text, without an end of line; erased when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // All the room at once: growing would leave a part behind.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * KEY));
        text.push_str(PREFIX);
        for byte in self.secret.iter() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// The bytes themselves, for the handshake alone.
    pub(crate) fn secret(&self) -> &[u8; KEY] {
        &self.secret
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn debug_shows_the_id_alone() {
        let key = Key::parse(format!("unikprof-key-1:{}", "5e".repeat(32)).as_bytes()).unwrap();
        assert_eq!(format!("{key:?}"), format!("Key({})", key.id()));
    }

    /// Both sides must come to the same id, whoever computes it.
    #[test]
    fn the_id_is_as_the_protocol_says() {
        let bytes: Vec<u8> = (0..32).collect();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = Key::parse(format!("unikprof-key-1:{text}").as_bytes()).unwrap();
        // Computed with another program: python3's hashlib.blake2s.
        assert_eq!(key.id().to_string(), "03ecb237f7066f5d");
    }
}
