//! A recording file in a block of memory, left by a crashed guest.

use std::io::Read;
use std::path::Path;

use unikprof_proto::file::{BlockError, BlockHead, PREAMBLE};

use super::error::RecordingError;
use super::reader::Reading;

const _: () = assert!(PREAMBLE < BlockHead::LENGTH, "a head is read in two pieces");

/// The file in a block whose first bytes are `begun`; what follows it is not read. To salvage, also
/// one that was altered or cut.
pub(super) fn file(
    begun: &[u8],
    source: impl Read,
    path: &Path,
    reading: Reading,
) -> Result<Vec<u8>, RecordingError> {
    let wrong = |source| RecordingError::Block { path: path.into(), source };
    let mut source = begun.chain(source);
    let mut read = |length: u64| {
        let mut bytes = Vec::new();
        let found = source.by_ref().take(length).read_to_end(&mut bytes);
        found.map(|_| bytes).map_err(|source| RecordingError::Open { path: path.into(), source })
    };
    let mut memory = read(BlockHead::LENGTH as u64)?;
    let head = memory.first_chunk().and_then(BlockHead::decode);
    let head = head.ok_or_else(|| wrong(BlockError::NoBlock))?;
    memory.append(&mut read(head.length)?);
    match BlockHead::file(&memory) {
        Err(damage) if reading == Reading::Strict => Err(wrong(damage)),
        _ => Ok(memory.split_off(BlockHead::LENGTH)),
    }
}
