//! One ELF file: its identity and its code's link addresses.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::elf::{self, ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{CompressionHeader, FileHeader, NoteIterator, SectionHeader};
use object::{
    CompressedData, CompressionFormat, Endian, Endianness, Object, ObjectKind, ObjectSection,
    ObjectSegment, ReadRef, SectionKind,
};

use super::debug_info::{MOST_DECOMPRESSED, decompress};
use super::error::SymbolError;
use super::image_bytes::{ElfFile, ImageBytes};
use crate::profile::{Architecture, BuildId, Mapping};

/// An ELF image.
pub struct Image {
    path: PathBuf,
    bytes: ImageBytes,
    build_id: Option<BuildId>,
    position_independent: bool,
    architecture: object::Architecture,
    segments: Vec<Segment>,
}

/// A loadable segment: where its bytes are in the file and where they were linked.
#[derive(Debug, Clone, Copy)]
struct Segment {
    file_offset: u64,
    file_size: u64,
    address: u64,
    executable: bool,
}

/// Segments are loaded by whole pages.
const PAGE: u64 = 4096;

impl Image {
    /// The largest image taken, in bytes.
    pub(crate) const MAX_BYTES: u64 = 4 << 30;

    /// Opens a file and checks that it is an ELF image.
    pub fn open(path: &Path) -> Result<Image, SymbolError> {
        Image::of(path, open_image(path, Self::MAX_BYTES)?)
    }

    /// Checks bytes that came from `path`.
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Image, SymbolError> {
        Image::of(path, bytes.into())
    }

    pub(super) fn of(path: &Path, mut bytes: ImageBytes) -> Result<Image, SymbolError> {
        let magic = bytes.get(0..bytes.length().min(4)).unwrap_or_default();
        if magic != object::elf::ELFMAG && !bytes.has_changed() {
            return Err(SymbolError::NotElf { path: path.to_owned(), found: magic.to_vec() });
        }
        // What is damaged is so for the parser, too.
        let _ = decompress_symbols(&mut bytes);
        let damaged = |problem| match bytes.has_changed() {
            true => SymbolError::Changed { path: path.to_owned() },
            false => SymbolError::Damaged { path: path.to_owned(), problem },
        };
        let file = ElfFile::parse(&bytes).map_err(damaged)?;
        let build_id = build_id(&file).map_err(damaged)?;
        let build_id = build_id.and_then(|id| BuildId::of_file(id).ok().flatten());
        let segments = file
            .segments()
            .map(|s| {
                let (file_offset, file_size) = s.file_range();
                Segment {
                    file_offset,
                    file_size,
                    address: s.address(),
                    executable: s.permissions().executable(),
                }
            })
            .collect();
        let position_independent = file.kind() == ObjectKind::Dynamic;
        let architecture = file.architecture();
        Ok(Image {
            path: path.to_owned(),
            build_id,
            position_independent,
            architecture,
            segments,
            bytes,
        })
    }

    /// The path from which it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From `.note.gnu.build-id`.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Whether it may be loaded anywhere: a library or a position-independent program.
    pub fn is_position_independent(&self) -> bool {
        self.position_independent
    }

    /// The link address of the code that ran at `address`; `None` if the mapping does not contain
    /// it or the image has no such bytes.
    ///
    /// A program with fixed addresses keeps them. Otherwise the file offset decides. If the offset
    /// is in no segment, the mapping is assumed to begin with the first segment; for a separate
    /// debug file, whose executable segment holds no bytes, in that segment's first page, since
    /// mappings contain code.
    pub fn link_address(&self, mapping: &Mapping, address: u64) -> Option<u64> {
        let offset = mapping.offset_of(address);
        if !self.position_independent {
            return mapping.contains(address).then_some(address);
        }
        let offset = offset?;
        let in_segment = self.segments.iter().find_map(|s| {
            let within = offset.checked_sub(s.file_offset).filter(|at| *at < s.file_size)?;
            s.address.checked_add(within)
        });
        in_segment.or_else(|| {
            let mut executable = self.segments.iter().filter(|s| s.executable);
            let first = match (executable.next(), executable.next()) {
                (Some(only), None) if only.file_size == 0 => {
                    let page = only.address - only.address % PAGE;
                    page.checked_add(mapping.start % PAGE)?
                }
                _ => self.segments.iter().map(|s| s.address).min()?,
            };
            first.checked_add(address - mapping.start)
        })
    }

    /// The inverse of [`link_address`](Self::link_address): where a mapping has the code that was
    /// linked at an address.
    pub fn guest_address(&self, mapping: &Mapping, linked: u64) -> Option<u64> {
        let place = |segment: &Segment| {
            let within = linked.checked_sub(segment.address)?;
            let within = (within < segment.file_size).then_some(within)?;
            let offset = segment.file_offset.checked_add(within)?;
            mapping.start.checked_add(offset.checked_sub(mapping.file_offset)?)
        };
        let lowest = || {
            let lowest = self.segments.iter().map(|segment| segment.address).min()?;
            mapping.start.checked_add(linked.checked_sub(lowest)?)
        };
        let candidates = if self.position_independent {
            [self.segments.iter().find_map(place), lowest()]
        } else {
            [Some(linked), None]
        };
        let mut candidates = candidates.into_iter().flatten();
        candidates.find(|address| self.link_address(mapping, *address) == Some(linked))
    }

    pub(super) fn check_architecture(&self, expected: &Architecture) -> Result<(), SymbolError> {
        let fits = match expected {
            Architecture::X86_64 => matches!(
                self.architecture,
                object::Architecture::X86_64 | object::Architecture::X86_64_X32
            ),
            Architecture::Aarch64 => self.architecture == object::Architecture::Aarch64,
            Architecture::Other(_) => true,
        };
        if fits {
            return Ok(());
        }
        Err(SymbolError::WrongArchitecture {
            path: self.path.clone(),
            expected: expected.clone(),
            found: format!("{:?}", self.architecture).to_lowercase(),
        })
    }

    /// The file.
    pub fn bytes(&self) -> &ImageBytes {
        &self.bytes
    }
}

/// The first build-id among a file's notes. Sections whose alignment is neither 4 nor 8 have no
/// readable notes and are passed over: Unikraft's `.note.Xen` on aarch64 is aligned to 16.
fn build_id<'a>(file: &ElfFile<'a>) -> object::Result<Option<&'a [u8]>> {
    let notes = file.sections().filter(|section| section.kind() == SectionKind::Note);
    let mut sections = notes.peekable();
    if sections.peek().is_none() {
        // A file without sections has notes in segments.
        return file.build_id();
    }
    for section in sections.filter(|section| matches!(section.align(), 0..=4 | 8)) {
        let (endian, align) = (file.endianness(), section.align());
        // Notes are the same in files of 32 and 64 bits.
        let mut notes =
            NoteIterator::<FileHeader64<Endianness>>::new(endian, align, section.data()?)?;
        while let Some(note) = notes.next()? {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Ok(Some(note.desc()));
            }
        }
    }
    Ok(None)
}

/// Puts the compressed symbol tables of a file behind it, plain, and has their section headers say
/// so: the parser reads other compressed sections, but not these. Damaged ones stay as they are.
fn decompress_symbols(file: &mut ImageBytes) -> object::Result<()> {
    let bytes = &*file;
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let headers = header.e_shoff(endian);
    let mut tables = Vec::new();
    let left = Cell::new(MOST_DECOMPRESSED);
    for (number, section) in header.section_headers(endian, bytes)?.iter().enumerate() {
        let (kind, flags) = (section.sh_type(endian), section.sh_flags(endian));
        if !matches!(kind, elf::SHT_SYMTAB | elf::SHT_STRTAB) {
            continue;
        }
        if let Some((head, offset, size)) = section.compression(endian, bytes)? {
            let data = CompressedData {
                format: match head.ch_type(endian) {
                    elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                    elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                    _ => CompressionFormat::Unknown,
                },
                data: bytes.read_bytes_at(offset, size).unwrap_or_default(),
                uncompressed_size: head.ch_size(endian),
            };
            let plain_flags = flags.0 & !elf::SHF_COMPRESSED.0;
            tables.push((number, plain_flags, decompress(data, &left)?.into_owned()));
        }
    }
    for (number, flags, table) in tables {
        let header = headers + (number * size_of::<elf::SectionHeader64<Endianness>>()) as u64;
        let size = table.len() as u64;
        let offset = file.append(table);
        // Flags, offset and size, which the address lies between.
        for (at, value) in [(8, flags), (24, offset), (32, size)] {
            file.replace(header + at, &endian.write_u64(value));
        }
    }
    Ok(())
}

/// Opens a regular file whose bytes are read as they are needed.
pub(super) fn open_image(path: &Path, limit: u64) -> Result<ImageBytes, SymbolError> {
    let (file, length) = open_regular_file(path, limit)?;
    let read = |source| SymbolError::Read { path: path.to_owned(), source };
    ImageBytes::of_file(file, length).map_err(read)
}

/// Reads as many bytes of a file as it says that it has. It must be a regular one: a recorded path
/// may name a device that never ends. Files in /proc say that they are empty.
pub fn read_regular_file(path: &Path, limit: u64) -> Result<Vec<u8>, SymbolError> {
    let (file, length) = open_regular_file(path, limit)?;
    read_up_to(file, path, length, length)
}

/// Reads a whole file that the user named, which may be one in /proc.
pub(super) fn read_named_file(path: &Path, limit: u64) -> Result<Vec<u8>, SymbolError> {
    let (file, length) = open_regular_file(path, limit)?;
    let bytes = read_up_to(file, path, length, limit.saturating_add(1))?;
    match bytes.len() as u64 {
        found if found > limit => {
            Err(SymbolError::TooLarge { path: path.to_owned(), found, limit })
        }
        _ => Ok(bytes),
    }
}

/// Opens a regular file; returns the size that it says it has.
fn open_regular_file(path: &Path, limit: u64) -> Result<(File, u64), SymbolError> {
    let read = |source| SymbolError::Read { path: path.to_owned(), source };
    // Asked before opening as well: opening a pipe waits for its writer.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(SymbolError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(SymbolError::NotAFile { path: path.to_owned() });
    }
    let found = metadata.len();
    if found > limit {
        return Err(SymbolError::TooLarge { path: path.to_owned(), found, limit });
    }
    Ok((file, found))
}

fn read_up_to(file: File, path: &Path, length: u64, most: u64) -> Result<Vec<u8>, SymbolError> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    let read = |source| SymbolError::Read { path: path.to_owned(), source };
    file.take(most).read_to_end(&mut bytes).map_err(read)?;
    Ok(bytes)
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("path", &self.path)
            .field("build_id", &self.build_id)
            .field("position_independent", &self.position_independent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use unikprof_test_kit::elf::TestElf;

    fn image(position_independent: bool) -> Image {
        Image {
            path: "libx.so".into(),
            bytes: Vec::new().into(),
            build_id: None,
            position_independent,
            architecture: object::Architecture::X86_64,
            segments: vec![
                Segment { file_offset: 0, file_size: 0x1000, address: 0, executable: false },
                Segment {
                    file_offset: 0x1000,
                    file_size: 0x800,
                    address: 0x3000,
                    executable: true,
                },
            ],
        }
    }

    #[test]
    fn notes_of_an_unknown_alignment_do_not_hide_the_build_id() {
        let code = [0xf4; 16];
        let with = TestElf::new(&code, &[(".note.Xen", 0, &[1; 96])]);
        let mut without = with.clone();
        without.sections.truncate(1);
        for (elf, id) in [(with, Some(&[0xc0, 0xff, 0xee, 1][..])), (without, None)] {
            let image = Image::parse(Path::new("guest.elf"), elf.bytes()).unwrap();
            assert_eq!(image.build_id().map(BuildId::as_bytes), id);
        }
    }

    fn mapping(file_offset: u64) -> Mapping {
        Mapping { start: 0x7f00_0000, end: 0x7f00_2000, file_offset, ..Mapping::default() }
    }

    #[test]
    fn an_offset_outside_the_file_falls_back_to_the_first_segment() {
        assert_eq!(image(true).link_address(&mapping(0x9000), 0x7f00_0010), Some(0x10));
    }

    #[test]
    fn a_separate_debug_file_is_taken_to_be_mapped_from_its_code_on() {
        let mut debug = image(true);
        debug.segments[1].file_size = 0;
        debug.segments[1].address = 0x3040;
        assert_eq!(debug.link_address(&mapping(0x1000), 0x7f00_0050), Some(0x3050));
        // A loader tells where the segment begins, and not its page.
        let segment = Mapping { start: 0x7f00_0040, ..mapping(0x1040) };
        assert_eq!(debug.link_address(&segment, 0x7f00_0050), Some(0x3050));
    }

    #[test]
    fn what_is_no_elf_file_says_what_it_is() {
        let parse =
            |bytes: &[u8]| Image::parse(Path::new("x"), bytes.to_vec()).unwrap_err().to_string();
        assert!(parse(b"#!/bin/sh\n").contains("found 23 21 2f 62"));
        assert!(parse(b"").contains("found an empty file"));
        assert!(parse(b"\x7fELF").contains("damaged ELF file"));
    }

    /// A recording may name a file that has no end, or that waits for ever.
    #[test]
    fn files_that_say_they_are_empty_are() {
        let path = Path::new("/proc/self/maps");
        assert_eq!(read_regular_file(path, 1 << 20).unwrap(), b"");
        assert!(!read_named_file(path, 1 << 20).unwrap().is_empty());
        assert!(matches!(read_named_file(path, 10), Err(SymbolError::TooLarge { .. })));
    }

    #[test]
    fn devices_and_directories_are_not_read() {
        for path in ["/dev/zero", "/"] {
            let error = Image::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, SymbolError::NotAFile { .. }), "{path}: {error}");
        }
    }
}
