//! The bytes that only files have; most structures are the protocol's.

use serde::{Deserialize, Serialize};
use unikprof_proto::code::message_type::FILE_FIRST;
use unikprof_proto::frame::Message;

pub(super) use unikprof_proto::file::PREAMBLE;
pub use unikprof_proto::file::{FileEnd, FileHeader, MAGIC, VERSION};
pub(crate) use unikprof_proto::file::{preamble, versions};

/// The longest reason kept, in bytes.
pub(crate) const MAX_REASON: usize = 1024;

/// The time window requested when the file was made: reports show it by default. On the guest's monotonic clock, in
/// ns, excluding its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileWindow {
    /// From when on.
    pub(crate) from_ns: u64,
    /// Up to when.
    pub(crate) to_ns: u64,
}

impl Message<'_> for FileWindow {
    const TYPE: u16 = FILE_FIRST + 2;
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
