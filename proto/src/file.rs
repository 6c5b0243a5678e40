//! Structures of files only: a recording file's preamble, header and end, and the head of a crash
//! dump in memory.
//!
//! A recording file is a [`preamble`], then frames as on the wire: a [`FileHeader`], a welcome and
//! its mappings, the recordings, and a [`FileEnd`].

use serde::{Deserialize, Serialize};

use crate::code::message_type::FILE_FIRST;
use crate::frame::{Message, crc32c};

/// The magic of a recording file. Its first byte is not ASCII, so that tools do not take the file
/// for text.
pub const MAGIC: [u8; 8] = *b"\x89unikrec";

/// The version of the file format that is written.
pub const VERSION: u16 = 1;

/// The length of a file's preamble in bytes.
pub const PREAMBLE: usize = 16;

/// The first frame of a file: who wrote it, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader<'a> {
    /// The client's name and version; in a crash dump, the agent's.
    #[serde(borrow)]
    pub client: &'a str,
    /// Nanoseconds since 1970-01-01 UTC on the client when it connected; 0 if its clock is before
    /// that, or not known.
    pub created_unix_ns: u64,
}

impl<'a> Message<'a> for FileHeader<'a> {
    const TYPE: u16 = FILE_FIRST;
}

/// The last frame of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEnd<'a> {
    /// Whether everything that the agent had counted at the stop or dump is in the file.
    pub complete: bool,
    /// For people: why it is incomplete. Empty if it is complete.
    #[serde(borrow)]
    pub reason: &'a str,
}

impl<'a> Message<'a> for FileEnd<'a> {
    const TYPE: u16 = FILE_FIRST + 1;
}

/// The preamble of a file whose frames follow this version of the protocol.
pub fn preamble(protocol: u16) -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&protocol.to_le_bytes());
    bytes
}

/// The file and protocol versions in a preamble; `None` if the magic is wrong.
pub fn versions(preamble: &[u8; PREAMBLE]) -> Option<(u16, u16)> {
    preamble.starts_with(&MAGIC).then(|| {
        (
            u16::from_le_bytes([preamble[8], preamble[9]]),
            u16::from_le_bytes([preamble[10], preamble[11]]),
        )
    })
}

/// The head of a block of memory that contains a crash dump, which is a recording file. The block
/// can be found at any place in memory by its magic, and gives the length of the file:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | [`BlockHead::MAGIC`] |
/// | 8 | 8 | the length of the file in bytes, little-endian |
/// | 16 | 4 | the CRC-32C of the file |
/// | 20 | 4 | the CRC-32C of the 20 bytes before |
/// | 24 | | the file |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHead {
    /// The length of the file in bytes.
    pub length: u64,
    /// The CRC-32C of the file.
    pub checksum: u32,
}

/// Why there is no file in a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockError {
    /// There is no magic, or the head was altered.
    NoBlock,
    /// The memory is shorter than the block: the block's length in bytes.
    Cut(u64),
    /// The file was altered: the checksum in the head, and the one found.
    Checksum(u32, u32),
}

impl BlockHead {
    /// The first bytes. The first of them is not ASCII.
    pub const MAGIC: [u8; 8] = *b"\x89unikmem";

    /// The head's length in bytes.
    pub const LENGTH: usize = 24;

    /// The head for this file.
    pub fn of(file: &[u8]) -> Self {
        Self { length: file.len() as u64, checksum: crc32c(0, file) }
    }

    /// The head's bytes.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32c(0, &bytes[..20]);
        bytes[20..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Decodes a head.
    pub fn decode(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (fields, own) = bytes.split_last_chunk()?;
        let length = fields.get(8..)?.first_chunk()?;
        let is_whole =
            fields.starts_with(&Self::MAGIC) && crc32c(0, fields) == u32::from_le_bytes(*own);
        is_whole.then_some(Self {
            length: u64::from_le_bytes(*length),
            checksum: u32::from_le_bytes(*fields.last_chunk()?),
        })
    }

    /// The file in the block at the start of `memory`.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn file(memory: &[u8]) -> Result<&[u8], BlockError> {
        let (head, rest) = memory.split_first_chunk().ok_or(BlockError::NoBlock)?;
        let head = Self::decode(head).ok_or(BlockError::NoBlock)?;
        let file = usize::try_from(head.length).ok();
        let file = file
            .and_then(|length| rest.get(..length))
            .ok_or(BlockError::Cut(head.length.saturating_add(Self::LENGTH as u64)))?;
        match crc32c(0, file) {
            found if found == head.checksum => Ok(file),
            found => Err(BlockError::Checksum(head.checksum, found)),
        }
    }
}

impl core::fmt::Display for BlockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoBlock => f.write_str("there is no block with a recording here"),
            Self::Cut(bytes) => write!(f, "the block has {bytes} bytes, but the memory is shorter"),
            Self::Checksum(expected, found) => write!(
                f,
                "the recording in the block was altered: its checksum is {found:#010x}, the head \
                 says \
                 {expected:#010x}"
            ),
        }
    }
}

impl core::error::Error for BlockError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Later versions must be able to find old crash dumps: these bytes may never change.
    #[test]
    fn a_block_is_found_whole_or_not_at_all() {
        let mut block = [0; BlockHead::LENGTH + 9];
        let file = b"123456789";
        block[..BlockHead::LENGTH].copy_from_slice(&BlockHead::of(file).encode());
        block[BlockHead::LENGTH..].copy_from_slice(file);
        assert_eq!(block[..20], *b"\x89unikmem\x09\0\0\0\0\0\0\0\x83\x92\x06\xe3");
        assert_eq!(BlockHead::file(&block), Ok(&file[..]));
        for length in 0..block.len() {
            let expected =
                if length < BlockHead::LENGTH { BlockError::NoBlock } else { BlockError::Cut(33) };
            assert_eq!(BlockHead::file(&block[..length]), Err(expected));
        }
        for index in 0..block.len() {
            block[index] ^= 1;
            assert!(BlockHead::file(&block).is_err(), "{index}");
            block[index] ^= 1;
        }
    }
}
