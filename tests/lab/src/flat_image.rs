//! Flat images, which Xen on Arm boots: such a file, or an ELF file's segments at their places in
//! memory.

use std::fs;
use std::io;
use std::path::Path;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, elf};

/// The magic of an arm64 image ("ARM\x64"), and where it is (Linux,
/// `Documentation/arch/arm64/booting.rst`).
const MAGIC: (usize, &[u8]) = (56, b"ARM\x64");

/// The flat image that a file is, or that an ELF file has.
pub(super) fn of(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    if is_image(&bytes) {
        return Ok(bytes);
    }
    from_elf(&bytes).ok_or_else(|| {
        let text = format!("{} is no arm64 image, also none in an ELF file", file.display());
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
    is_image(&image).then_some(image)
}

fn is_image(bytes: &[u8]) -> bool {
    let (at, magic) = MAGIC;
    bytes.get(at..at + magic.len()) == Some(magic)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write as _;

    use super::*;

    /// An ELF file of aarch64 with these segments, by address.
    fn elf_of(segments: &[(u64, &[u8])]) -> Vec<u8> {
        const HEAD: usize = 64;
        const ENTRY: usize = 56;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        for half in [2_u16, 183] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        for word in [0, HEAD as u64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0_u32.to_le_bytes());
        for half in [HEAD, ENTRY, segments.len(), 64, 0, 0] {
            file.extend((half as u16).to_le_bytes());
        }
        let mut offset = HEAD + segments.len() * ENTRY;
        for (address, data) in segments {
            file.extend(1_u32.to_le_bytes());
            file.extend(7_u32.to_le_bytes());
            let size = data.len() as u64;
            for word in [offset as u64, *address, *address, size, size + 64, 1] {
                file.extend(word.to_le_bytes());
            }
            offset += data.len();
        }
        segments.iter().for_each(|(_, data)| file.extend(*data));
        file
    }

    fn head() -> Vec<u8> {
        let mut head = vec![1; 64];
        head[56..60].copy_from_slice(MAGIC.1);
        head
    }

    #[test]
    fn segments_lie_at_their_distances_whatever_their_order() {
        let head = head();
        let image = from_elf(&elf_of(&[(0x4000_1000, b"data"), (0x4000_0000, &head)])).unwrap();
        assert_eq!(image.len(), 0x1004);
        assert_eq!((&image[..64], &image[0x1000..]), (&head[..], &b"data"[..]));
        assert!(image[64..0x1000].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_flat_image_is_booted_as_it_is() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let image = [head(), b"code".to_vec()].concat();
        file.write_all(&image).unwrap();
        assert_eq!(of(file.path()).unwrap(), image);
    }

    /// Guards against a kernel for another loader, and against an image as large as the distance of
    /// its segments.
    #[test]
    fn what_xen_would_not_boot_is_refused() {
        let head = head();
        assert_eq!(from_elf(b"no ELF file"), None);
        assert_eq!(from_elf(&elf_of(&[(0x4000_0000, &[0; 64])])), None);
        assert_eq!(from_elf(&elf_of(&[(0x4000_0000, b"short")])), None);
        let far = elf_of(&[(0x4000_0000, &head), (1 << 40, b"far")]);
        assert_eq!(from_elf(&far), None);
    }
}
