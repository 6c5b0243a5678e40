//! The bytes that only files have; most structures are the protocol's.

use serde::{Deserialize, Serialize};
use unikprof_proto::code::message_type::FILE_FIRST;
use unikprof_proto::frame::Message;

pub use unikprof_proto::file::{FileEnd, FileHeader, MAGIC, VERSION, preamble};
pub(super) use unikprof_proto::file::{PREAMBLE, versions};

/// The longest reason kept, in bytes.
pub(crate) const MAX_REASON: usize = 1024;

/// The time window requested when the file was made: reports show it by default. On the guest's
/// monotonic clock, in ns, excluding its end.
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

/// A trace, as it was asked for. The rest of its frames follow: a [`FileFunction`] for each
/// function, the agent's answers (`TraceReady`, `TraceArmed` and `TraceRefused`s, in the end
/// `TraceState`, `TraceTotals`, `TraceCallers` and `TraceEnd`) and a [`FileCaller`] for each place
/// that functions were called from. Its calls are in the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTrace<'a> {
    /// The patterns that the functions were chosen by, separated by spaces.
    pub patterns: &'a str,
    /// The function within whose calls others are shown; empty: everywhere.
    pub inside: &'a str,
    /// See [`trace_flag`](unikprof_proto::code::trace_flag).
    pub flags: u32,
    /// Calls of at least so many ns are kept one by one; 0: all.
    pub slow_ns: u64,
    /// The share of a vCPU that a trace may take, in 1/1000.
    pub max_cost_permille: u32,
}

impl<'a> Message<'a> for FileTrace<'a> {
    const TYPE: u16 = FILE_FIRST + 3;
}

/// A function of a trace, in the order of their indices; or, with a reason, one that was asked for
/// and cannot be traced, which has no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFunction<'a> {
    /// As the image has it.
    pub name: &'a str,
    /// See [`function_flag`](unikprof_proto::trace::function_flag).
    pub flags: u32,
    /// Why it cannot be traced; empty: it can.
    pub refused: &'a str,
}

impl<'a> Message<'a> for FileFunction<'a> {
    const TYPE: u16 = FILE_FIRST + 4;
}

/// The name of the function that holds a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCaller<'a> {
    /// The code address, relative.
    pub code: u32,
    /// As the image has it.
    pub name: &'a str,
}

impl<'a> Message<'a> for FileCaller<'a> {
    const TYPE: u16 = FILE_FIRST + 5;
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
        let header = FileHeader { client: "c", created_unix_ns: 300 };
        let length = frame::encode(&header, &mut buffer).unwrap();
        assert_eq!(buffer[..2], [0x00, 0x40]);
        assert_eq!(buffer[10..length], [1, b'c', 0xac, 0x02]);
        let end = FileEnd { complete: false, reason: "r" };
        let length = frame::encode(&end, &mut buffer).unwrap();
        assert_eq!(buffer[..2], [0x01, 0x40]);
        assert_eq!(buffer[10..length], [0, 1, b'r']);
    }
}
