//! The bytes of a file that may be larger than this machine's memory.
#![allow(unsafe_code, reason = "a file is mapped")]

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// Files up to this length are read. They are the logs, which others write on and cut off
/// meanwhile.
const MOST_READ: u64 = 64 << 20;

/// A whole file: mapped if it is large.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl FileBytes {
    pub(crate) fn open(path: &Path) -> io::Result<FileBytes> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() <= MOST_READ {
            return FileBytes::read(&mut file);
        }
        // SAFETY: nobody may change the file while it is mapped, which is its owner's to uphold, as
        // with any file that is mapped. It is mapped without leave to write, so this program does
        // not. If the owner does, the bytes are still bytes; if the owner cuts it off, this program
        // ends with SIGBUS and has changed nothing.
        let mapped = unsafe { Mmap::map(&file) }?;
        Ok(FileBytes::Mapped(mapped))
    }

    pub(crate) fn read(source: &mut impl Read) -> io::Result<FileBytes> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        Ok(FileBytes::Read(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Read(bytes) => bytes,
            FileBytes::Mapped(mapped) => mapped,
        }
    }
}
