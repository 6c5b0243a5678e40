//! The first 16 bytes of a connection, in each direction; fixed for all versions.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, `unikprof` |
//! | 8 | 2 | lowest protocol version spoken, little endian |
//! | 10 | 2 | highest protocol version spoken, little endian |
//! | 12 | 1 | [`security`]: required by the agent, offered by the client |
//! | 13 | 3 | reserved: sent as zero, ignored when read |
//!
//! The version in use is the highest that both sides speak. If there is none, the agent sends its
//! own preamble, a [`Refusal`](crate::message::Refusal) that names both ranges, and closes.
//!
//! Preambles are not encrypted. With [`NOISE`](crate::code::security::NOISE), the handshake
//! authenticates both; see [`secure`](crate::secure).

use core::fmt;

use crate::code::security;

/// The magic of a connection.
pub const MAGIC: [u8; 8] = *b"unikprof";

/// The length of a preamble in bytes.
pub const LENGTH: usize = 16;

/// The versions this crate speaks.
pub const VERSIONS: VersionRange = VersionRange { lowest: 1, highest: 1 };

/// The contents of a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The versions it speaks.
    pub versions: VersionRange,
    /// Required by an agent, offered by a client; see [`code::security`](crate::code::security).
    pub security: u8,
}

/// This crate's preamble without a key.
pub const OPEN: Preamble = Preamble { versions: VERSIONS, security: security::OPEN };

/// This crate's preamble with a key.
pub const KEYED: Preamble = Preamble { versions: VERSIONS, security: security::NOISE };

/// An inclusive range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest version spoken.
    pub lowest: u16,
    /// The highest version spoken.
    pub highest: u16,
}

impl VersionRange {
    /// The highest version in both ranges, if any.
    ///
    /// ```
    /// use unikprof_proto::preamble::VersionRange;
    /// let old = VersionRange { lowest: 1, highest: 3 };
    /// let new = VersionRange { lowest: 2, highest: 9 };
    /// assert_eq!(old.common(new), Some(3));
    /// assert_eq!(old.common(VersionRange { lowest: 4, highest: 9 }), None);
    /// ```
    pub fn common(self, other: Self) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        let lowest = self.lowest.max(other.lowest);
        (lowest <= highest).then_some(highest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Formatted as u64, because an agent has that code anyway.
        let (lowest, highest) = (u64::from(self.lowest), u64::from(self.highest));
        if lowest == highest { write!(f, "{lowest}") } else { write!(f, "{lowest} to {highest}") }
    }
}

/// Why 16 bytes are not a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreambleError {
    /// The magic differs: something else speaks on this port.
    Magic,
    /// The lowest version is above the highest.
    EmptyRange(VersionRange),
}

impl fmt::Display for PreambleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("the magic is not `unikprof`"),
            Self::EmptyRange(range) => {
                write!(f, "the version range is empty ({} to {})", range.lowest, range.highest)
            }
        }
    }
}

impl core::error::Error for PreambleError {}

/// Encodes a preamble.
pub fn encode(preamble: Preamble) -> [u8; LENGTH] {
    let Preamble { versions, security } = preamble;
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&versions.lowest.to_le_bytes());
    bytes[10..12].copy_from_slice(&versions.highest.to_le_bytes());
    bytes[12] = security;
    bytes
}

/// Decodes a preamble.
///
/// # Errors
/// [`PreambleError`] if the bytes are not a preamble.
pub fn decode(bytes: &[u8; LENGTH]) -> Result<Preamble, PreambleError> {
    if bytes[..8] != MAGIC {
        return Err(PreambleError::Magic);
    }
    let versions = VersionRange {
        lowest: u16::from_le_bytes([bytes[8], bytes[9]]),
        highest: u16::from_le_bytes([bytes[10], bytes[11]]),
    };
    if versions.lowest > versions.highest {
        return Err(PreambleError::EmptyRange(versions));
    }
    Ok(Preamble { versions, security: bytes[12] })
}

/// Whether `bytes`, an incomplete preamble, may be the beginning of a valid one.
pub fn is_prefix(bytes: &[u8]) -> bool {
    let shared = bytes.len().min(MAGIC.len());
    bytes[..shared] == MAGIC[..shared]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The preamble is the same in all versions: its bytes may never change.
    #[test]
    fn golden() {
        let versions = VersionRange { lowest: 1, highest: 0x0203 };
        let open = encode(Preamble { versions, ..OPEN });
        assert_eq!(&open, b"unikprof\x01\x00\x03\x02\0\0\0\0");
        let keyed = encode(Preamble { versions, ..KEYED });
        assert_eq!(&keyed, b"unikprof\x01\x00\x03\x02\x01\0\0\0");
        let security = security::NOISE;
        assert_eq!(decode(&keyed), Ok(Preamble { versions, security }));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(decode(b"HTTP/1.1 400 Bad"), Err(PreambleError::Magic));
        assert!(!is_prefix(b"HTTP"));
        assert!(is_prefix(b"unik") && is_prefix(b""));
        let empty = VersionRange { lowest: 2, highest: 1 };
        let inverted = encode(Preamble { versions: empty, ..OPEN });
        assert!(matches!(decode(&inverted), Err(PreambleError::EmptyRange(_))));
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let mut bytes = encode(KEYED);
        let said = decode(&bytes);
        bytes[13..].fill(0xff);
        assert_eq!(decode(&bytes), said);
    }
}
