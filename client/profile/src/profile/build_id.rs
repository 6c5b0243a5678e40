//! The identity of a linked file.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The GNU build-id of an image: a hash the linker puts into `.note.gnu.build-id`.
///
/// Shown and parsed as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    /// The longest build-id taken; linkers write 8 to 32 bytes.
    pub(crate) const MAX_BYTES: usize = 64;

    /// Checks and keeps the bytes: between one and [`BuildId::MAX_BYTES`].
    fn new(bytes: &[u8]) -> Result<BuildId, BuildIdError> {
        if bytes.is_empty() || bytes.len() > Self::MAX_BYTES {
            return Err(BuildIdError::Length { found: bytes.len() });
        }
        Ok(BuildId(bytes.into()))
    }

    /// The build-id that a file has; `None` for no bytes, or only zeros: linkers and build systems
    /// write those in place of a hash.
    pub(crate) fn of_file(bytes: &[u8]) -> Result<Option<BuildId>, BuildIdError> {
        match bytes {
            [] => Ok(None),
            _ => Ok(Some(BuildId::new(bytes)?).filter(|id| id.0.iter().any(|byte| *byte != 0))),
        }
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

impl FromStr for BuildId {
    type Err = BuildIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(found) = text.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(BuildIdError::Digit { found });
        }
        if !text.len().is_multiple_of(2) {
            return Err(BuildIdError::OddDigits { found: text.len() });
        }
        let bytes: Vec<u8> = text
            .as_bytes()
            .chunks_exact(2)
            .filter_map(|pair| {
                let digits = std::str::from_utf8(pair).ok()?;
                u8::from_str_radix(digits, 16).ok()
            })
            .collect();
        BuildId::new(&bytes)
    }
}

/// Why bytes or text are no build-id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BuildIdError {
    #[error("a build-id has 1 to {} bytes, found {found}", BuildId::MAX_BYTES)]
    Length { found: usize },
    #[error("a build-id is written in hexadecimal digits, found {found:?}")]
    Digit { found: char },
    #[error("a build-id has an even number of hexadecimal digits, found {found}")]
    OddDigits { found: usize },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn zeros_are_no_build_id() {
        assert_eq!(BuildId::of_file(&[0; 20]), Ok(None));
        assert_eq!(BuildId::of_file(&[]), Ok(None));
        assert_eq!(BuildId::of_file(&[0, 1]), Ok("0001".parse().ok()));
        assert_eq!(BuildId::of_file(&[1; 65]), Err(BuildIdError::Length { found: 65 }));
    }

    #[test]
    fn hostile_text_is_refused() {
        let id: BuildId = "c0ffee01".parse().unwrap();
        assert_eq!(id.as_bytes(), [0xc0, 0xff, 0xee, 0x01]);
        assert_eq!(id.to_string(), "c0ffee01");
        assert_eq!("".parse::<BuildId>(), Err(BuildIdError::Length { found: 0 }));
        assert_eq!("abc".parse::<BuildId>(), Err(BuildIdError::OddDigits { found: 3 }));
        assert_eq!("zz".parse::<BuildId>(), Err(BuildIdError::Digit { found: 'z' }));
        assert_eq!("+1".parse::<BuildId>(), Err(BuildIdError::Digit { found: '+' }));
        assert_eq!("aé".parse::<BuildId>(), Err(BuildIdError::Digit { found: 'é' }));
        assert_eq!("00".repeat(65).parse::<BuildId>(), Err(BuildIdError::Length { found: 65 }));
    }
}
