//! The "newc" cpio archive, which Linux unpacks as its initramfs.
//!
//! Each entry is a header of thirteen eight-digit hexadecimal fields after the magic `070701`, the
//! name with its NUL, and the data; name and data are padded to four bytes
//! (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Writes an archive. Parent folders are added when first needed.
pub(crate) struct CpioWriter<W: Write> {
    out: W,
    next_inode: u32,
    folders: BTreeSet<String>,
}

impl<W: Write> CpioWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, next_inode: 1, folders: BTreeSet::new() }
    }

    /// Adds an empty folder. Paths are relative to the root, without a leading slash.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.parents(path)?;
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, &[])?;
        }
        Ok(())
    }

    /// Adds a file that may be executed.
    pub(crate) fn file(&mut self, path: &str, data: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, PROGRAM, data)
    }

    /// Adds a copy of a file of the host; symbolic links are followed.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> io::Result<()> {
        let data = std::fs::read(from)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", from.display())))?;
        self.file(path, &data)
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, LINK, target.as_bytes())
    }

    /// Writes the end of the archive and gives the writer back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.folder(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        let too_large =
            |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: too large"));
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        let (inode, owner, group, links, time) = (self.next_inode, 0, 0, 1, 0);
        self.next_inode += 1;
        write!(self.out, "070701")?;
        for field in [inode, mode, owner, group, links, time, size, 0, 0, 0, 0, name_size, 0] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(6 + 13 * 8 + name.len() + 1)?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let padding = written.next_multiple_of(4) - written;
        self.out.write_all(&[0; 4][..padding])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_entry_has_the_layout_linux_reads() {
        let mut archive = CpioWriter::new(Vec::new());
        archive.file("hi", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        // Header 110 + "hi\0" 3 = 113, padded to 116; data 5, padded to 8.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081ed", "a regular file, 0755");
        assert_eq!(&bytes[54..62], b"00000005", "the size");
        assert_eq!(&bytes[94..102], b"00000003", "the name with its NUL");
        assert_eq!(&bytes[110..116], b"hi\0\0\0\0");
        assert_eq!(&bytes[116..124], b"12345\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn parents_come_once_and_before_their_children() {
        let mut archive = CpioWriter::new(Vec::new());
        archive.file("a/b/one", b"").unwrap();
        archive.file("a/b/two", b"").unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        let names: Vec<usize> =
            ["a\0", "a/b\0", "a/b/one\0", "a/b/two\0"].map(|n| text.find(n).unwrap()).to_vec();
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(text.matches("a/b\0").count(), 1);
    }
}
