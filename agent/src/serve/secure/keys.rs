//! Keys, their ids and their roles.

use core::fmt;

use subtle::ConstantTimeEq;
use unikprof_proto::code::role;
pub use unikprof_proto::secure::KeyId;
use unikprof_proto::secure::{KEY, KEY_ID, KEY_ID_CONTEXT, KEY_PREFIX as PREFIX};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::hash::digest;
use super::secret::Secret;

/// The maximum number of keys of an agent: two roles, and room for old and new keys during a
/// change.
pub const MAX_KEYS: usize = 8;

/// A key that an agent shares with its clients: 32 secret bytes. Erased when it is dropped, never
/// shown, and compared in constant time.
///
/// ```
/// use unikprof_agent::Key;
/// let text = "# view\nunikprof-key-1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
/// let key = Key::parse(text)?;
/// assert_eq!(format!("{key:?}"), "Key(03ecb237f7066f5d)");
/// # Ok::<(), unikprof_agent::KeyError>(())
/// ```
#[derive(Zeroize)]
pub struct Key(Secret<KEY>);

impl ZeroizeOnDrop for Key {}

impl Key {
    /// Creates a key from bytes, which must come from a good source of random numbers. The caller
    /// must erase its own copy.
    pub const fn from_bytes(bytes: [u8; KEY]) -> Self {
        Self(Secret(bytes))
    }

    /// Parses a key file: one line with `unikprof-key-1:` and 64 lower-case hexadecimal digits.
    /// Lines that are empty or begin with `#` are ignored.
    ///
    /// # Errors
    /// [`KeyError`] for any other text. The error reveals nothing of the text except its length.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut lines = text
            .lines()
            .map(str::trim_ascii)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let line = lines.next().ok_or(KeyError::Missing)?;
        if lines.next().is_some() {
            return Err(KeyError::Several);
        }
        let digits = line.strip_prefix(PREFIX).ok_or(KeyError::Prefix)?;
        if digits.len() != 2 * KEY {
            return Err(KeyError::Length(digits.len()));
        }
        let mut key = Secret([0; KEY]);
        for (byte, digits) in key.0.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            for digit in digits {
                let digit = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(KeyError::Digit),
                };
                *byte = *byte << 4 | digit;
            }
        }
        Ok(Self(key))
    }

    /// The key's id, which identifies the key and reveals nothing about it.
    pub fn id(&self) -> KeyId {
        let digest = digest(&[KEY_ID_CONTEXT, &self.0.0]);
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&digest[..KEY_ID]);
        KeyId(id)
    }

    pub(super) fn bytes(&self) -> &[u8; KEY] {
        &self.0.0
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.0.ct_eq(&other.0.0).into()
    }
}

impl Eq for Key {}

/// Shows only the id.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id())
    }
}

/// Why a text is not a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// There is no line that could be a key.
    Missing,
    /// There is more than one line.
    Several,
    /// The line does not begin with `unikprof-key-1:`.
    Prefix,
    /// There are not 64 digits after it: the number of bytes found.
    Length(usize),
    /// There are characters that are not lower-case hexadecimal digits.
    Digit,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = 2 * KEY;
        match self {
            Self::Missing => {
                write!(f, "expected a key, `{PREFIX}` and {digits} digits; found none")
            }
            Self::Several => f.write_str("expected one key; found more than one line"),
            Self::Prefix => write!(f, "a key begins with `{PREFIX}`; this does not"),
            Self::Length(found) => {
                write!(f, "expected {digits} digits after `{PREFIX}`; found {found}")
            }
            Self::Digit => {
                f.write_str("a key has the digits 0 to 9 and a to f; found something else")
            }
        }?;
        f.write_str("; `unikprof-client keygen` makes one")
    }
}

impl core::error::Error for KeyError {}

/// The permissions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read-only: the agent's description, its state, and existing recordings.
    View,
    /// All requests but those that trace.
    Control,
    /// All requests, and tracing: its holder can set breakpoints in the guest's code.
    Trace,
}

impl Role {
    /// The code on the wire; see [`unikprof_proto::code::role`].
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::View => role::VIEW,
            Self::Control => role::CONTROL,
            Self::Trace => role::TRACE,
        }
    }
}

/// The keys of an agent, each with its role. Several keys may have the same role, so that an old
/// and a new key are both valid while keys are changed.
///
/// ```
/// use unikprof_agent::{Key, Keys, Role};
/// let mut keys = Keys::new();
/// keys.add(Role::View, Key::from_bytes([7; 32]))?;
/// keys.add(Role::Control, Key::from_bytes([8; 32]))?;
/// assert!(keys.add(Role::Control, Key::from_bytes([7; 32])).is_err());
/// # Ok::<(), unikprof_agent::KeysError>(())
/// ```
#[derive(Debug, Default)]
pub struct Keys {
    entries: [Option<Entry>; MAX_KEYS],
}

/// A key in use.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: KeyId,
    pub(crate) role: Role,
    pub(crate) key: Key,
}

/// Why a key cannot be added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeysError {
    /// There are [`MAX_KEYS`] keys already.
    Full,
    /// This key exists already. A key has one role.
    Twice(KeyId),
}

impl Keys {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { entries: [const { None }; MAX_KEYS] }
    }

    /// Adds a key.
    ///
    /// # Errors
    ///
    /// [`KeysError`]; the key is then erased.
    pub fn add(&mut self, role: Role, key: Key) -> Result<(), KeysError> {
        let id = key.id();
        // The same key has the same id. Two different keys with one id could not be distinguished
        // either.
        if self.find(id).is_some() {
            return Err(KeysError::Twice(id));
        }
        let place = self.entries.iter_mut().find(|entry| entry.is_none());
        *place.ok_or(KeysError::Full)? = Some(Entry { id, role, key });
        Ok(())
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The ids and roles of the keys, which a guest may log.
    pub fn iter(&self) -> impl Iterator<Item = (KeyId, Role)> {
        self.entries.iter().flatten().map(|it| (it.id, it.role))
    }

    pub(crate) fn find(&self, id: KeyId) -> Option<&Entry> {
        self.entries.iter().flatten().find(|entry| entry.id == id)
    }
}

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "an agent takes {MAX_KEYS} keys; remove an old one"),
            Self::Twice(id) => write!(f, "the key {id} is given twice; a key has one role"),
        }
    }
}

impl core::error::Error for KeysError {}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ground::text::Text;

    const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn text(arguments: fmt::Arguments<'_>) -> Text {
        Text::format(arguments)
    }

    #[test]
    fn a_key_is_read_from_a_file_with_comments() {
        let mut bytes = [0; KEY];
        (0..).zip(&mut bytes).for_each(|(n, byte)| *byte = n);
        for (before, behind) in [("", ""), ("", "\n"), ("# role: view\r\n\n", "\r\n# end")] {
            let text = text(format_args!("{before}{PREFIX}{DIGITS}{behind}"));
            assert!(Key::parse(text.as_str()).unwrap() == Key::from_bytes(bytes));
        }
    }

    /// A malformed key is rejected, and the error does not repeat it.
    #[test]
    fn what_is_no_key_is_an_error_without_the_text() {
        let upper = "000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F";
        for (found, expected) in [
            (text(format_args!("# only this")), KeyError::Missing),
            (text(format_args!("{PREFIX}{DIGITS}\n{PREFIX}{DIGITS}")), KeyError::Several),
            (text(format_args!("{DIGITS}")), KeyError::Prefix),
            (text(format_args!("unikprof-key-2:{DIGITS}")), KeyError::Prefix),
            (text(format_args!("{PREFIX}{DIGITS}0")), KeyError::Length(65)),
            (text(format_args!("{PREFIX}")), KeyError::Length(0)),
            (text(format_args!("{PREFIX}{upper}")), KeyError::Digit),
        ] {
            let error = Key::parse(found.as_str()).unwrap_err();
            assert_eq!(error, expected);
            let shown = text(format_args!("{error} {error:?}"));
            assert!(!shown.as_str().contains(&DIGITS[..8]), "{shown}");
        }
    }

    #[test]
    fn nothing_shows_a_key() {
        let mut keys = Keys::new();
        keys.add(Role::View, Key::from_bytes([0xab; KEY])).unwrap();
        let shown = text(format_args!("{keys:?}"));
        let (id, _) = keys.iter().next().unwrap();
        assert!(shown.as_str().contains(text(format_args!("{id}")).as_str()), "{shown}");
        assert!(!shown.as_str().contains("171, 171"), "{shown}");
        assert!(!shown.as_str().contains("abab"), "{shown}");
    }

    #[test]
    fn eight_keys_and_none_twice() {
        let mut keys = Keys::new();
        assert!(keys.is_empty());
        for n in 0..MAX_KEYS as u8 {
            keys.add(Role::Control, Key::from_bytes([n; KEY])).unwrap();
        }
        let twice = keys.add(Role::View, Key::from_bytes([3; KEY]));
        assert!(matches!(twice, Err(KeysError::Twice(_))), "{twice:?}");
        assert_eq!(keys.add(Role::View, Key::from_bytes([99; KEY])), Err(KeysError::Full));
    }
}
