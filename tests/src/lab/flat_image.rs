//! Flat images, which Xen on Arm boots: an ELF file's segments at their places in memory.

use std::fs;
use std::io;
use std::path::Path;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, elf};

/// The magic of an arm64 image ("ARM\x64"), and where it is (Linux, `Documentation/arch/arm64/booting.rst`).
const MAGIC: (usize, &[u8]) = (56, b"ARM\x64");

/// The flat image of an ELF file.
pub(super) fn of(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    from_elf(&bytes).ok_or_else(|| {
        let text = format!("{} is no arm64 image in an ELF file", file.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn from_elf(bytes: &[u8]) -> Option<Vec<u8>> {
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let endian = file.endian();
    let segments = file.elf_program_headers().iter();
    let segments = segments.filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let segments: Vec<(u64, &[u8])> = segments
        .map(|segment| Some((segment.p_paddr(endian), segment.data(endian, bytes).ok()?)))
        .collect::<Option<_>>()?;
    let start = segments.iter().map(|(address, _)| *address).min()?;
    let mut image = Vec::new();
    for (address, data) in segments {
        let at = usize::try_from(address - start).ok()?;
        let end = at.checked_add(data.len()).filter(|end| *end <= 1 << 30)?;
        if image.len() < end {
            image.resize(end, 0);
        }
        image[at..end].copy_from_slice(data);
    }
    let (at, magic) = MAGIC;
    (image.get(at..at + magic.len())? == magic).then_some(image)
}
