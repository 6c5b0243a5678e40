//! Runs: the items of one message, encoded one after the other. [`nodes`](crate::nodes),
//! [`counts`](crate::counts) and the records of a [`ring`](crate::ring) are sent as runs.

use core::fmt;

/// Why bytes are not a run of items of a kind, such as `stack node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRun {
    /// The bytes end within an item, or a varint does not end: the item's number.
    Cut(&'static str, u64),
    /// The item with this number is invalid.
    Impossible(&'static str, u64),
    /// Bytes follow the last item: how many.
    LeftOver(&'static str, usize),
}

impl fmt::Display for InvalidRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(item, number) => write!(f, "the bytes end within {item} {number}"),
            Self::Impossible(item, number) => write!(f, "{item} {number} is invalid"),
            Self::LeftOver(item, bytes) => write!(f, "{bytes} bytes follow the last {item}"),
        }
    }
}

impl core::error::Error for InvalidRun {}

/// Checks that all bytes of a run were read.
pub(crate) fn end(item: &'static str, rest: &[u8]) -> Result<(), InvalidRun> {
    match rest.len() {
        0 => Ok(()),
        left => Err(InvalidRun::LeftOver(item, left)),
    }
}
