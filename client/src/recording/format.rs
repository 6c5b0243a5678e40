//! The bytes that only files have: the preamble, the header and the end.

use serde::{Deserialize, Serialize};
use unikprof_proto::code::message_type::FILE_FIRST;
use unikprof_proto::frame::Message;

/// The magic of a recording file. Its first byte is no text, so that tools do not take it for one.
pub const MAGIC: [u8; 8] = *b"\x89unikrec";

/// The version of the file format that is written.
pub const VERSION: u16 = 1;

/// The length of a file's preamble in bytes.
pub(super) const PREAMBLE: usize = 16;

/// The first frame of a file: who wrote it, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader<'a> {
    /// The client's name and version.
    #[serde(borrow)]
    pub client: &'a str,
    /// Nanoseconds since 1970-01-01 UTC on the client when it connected; 0 if its clock is before that.
    pub created_unix_ns: u64,
}

impl<'a> Message<'a> for FileHeader<'a> {
    const TYPE: u16 = FILE_FIRST;
}

/// The last frame of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEnd<'a> {
    /// Whether everything that the agent counted up to the stop or dump is there.
    pub complete: bool,
    /// For people: why not. Empty where it is complete.
    #[serde(borrow)]
    pub reason: &'a str,
}

impl<'a> Message<'a> for FileEnd<'a> {
    const TYPE: u16 = FILE_FIRST + 1;
}

/// The longest reason kept, in bytes.
pub(crate) const MAX_REASON: usize = 1024;

/// The preamble of a file whose frames follow this version of the protocol.
pub(crate) fn preamble(protocol: u16) -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&protocol.to_le_bytes());
    bytes
}

/// The file and protocol versions in a preamble; `None` where the magic is another.
pub(crate) fn versions(preamble: &[u8; PREAMBLE]) -> Option<(u16, u16)> {
    preamble.starts_with(&MAGIC).then(|| {
        (
            u16::from_le_bytes([preamble[8], preamble[9]]),
            u16::from_le_bytes([preamble[10], preamble[11]]),
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::frame;

    use super::*;

    /// Files outlive clients: these bytes may never change.
    #[test]
    fn golden() {
        assert_eq!(&preamble(1), b"\x89unikrec\x01\0\x01\0\0\0\0\0");
        assert_eq!(versions(&preamble(7)), Some((1, 7)));
        assert_eq!(versions(b"unikprof\x01\0\x01\0\0\0\0\0"), None);
        let mut buffer = [0; 64];
        let header = FileHeader {
            client: "c",
            created_unix_ns: 300,
        };
        let length = frame::encode(&header, &mut buffer).unwrap();
        assert_eq!(buffer[..2], [0x00, 0x40]);
        assert_eq!(buffer[10..length], [1, b'c', 0xac, 0x02]);
        let end = FileEnd {
            complete: false,
            reason: "r",
        };
        let length = frame::encode(&end, &mut buffer).unwrap();
        assert_eq!(buffer[..2], [0x01, 0x40]);
        assert_eq!(buffer[10..length], [0, 1, b'r']);
    }
}
