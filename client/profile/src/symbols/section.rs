//! The bytes of a section with debug information, read from its file as they are needed.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use gimli::{Error, Reader as _, ReaderOffsetId, Result, RunTimeEndian};
use object::{CompressionFormat, ObjectSection as _};

use super::debug_info::{endian, section_bytes};
use super::image_bytes::{ElfFile, ImageBytes, OpenedFile};

/// So much is read together.
const BLOCK: usize = 16 << 10;

/// The most blocks of a section that are kept.
const MAX_BLOCKS: usize = 256;

/// A section of any length, which takes no more than 4 MiB of memory if the file has it as it is.
pub(crate) struct Section<'a> {
    bytes: Bytes<'a>,
    length: usize,
    endian: RunTimeEndian,
}

enum Bytes<'a> {
    /// Decompressed, or those of an image in memory.
    Whole(Cow<'a, [u8]>),
    InFile {
        file: Arc<OpenedFile>,
        start: u64,
        blocks: RefCell<Blocks>,
    },
}

struct Blocks {
    /// By their places in the section.
    read: Vec<Option<Box<[u8]>>>,
    /// Which were read, the latest last.
    order: VecDeque<usize>,
}

impl<'a> Section<'a> {
    /// A section of a file, [decompressed](section_bytes) if it needs to be.
    pub(super) fn of(
        file: &ElfFile<'a>,
        section: &object::Section<'a, '_, &'a ImageBytes>,
        left: &Cell<u64>,
    ) -> object::Result<Section<'a>> {
        let bytes = match file {
            object::File::Elf32(file) => Some(file.data()),
            object::File::Elf64(file) => Some(file.data()),
            _ => None,
        };
        let stored = section.compressed_file_range()?;
        let end = stored.offset.saturating_add(stored.compressed_size);
        let plain = bytes.filter(|_| stored.format == CompressionFormat::None);
        let in_file = plain.and_then(|bytes| bytes.file_with(&(stored.offset..end)));
        Ok(match (in_file, usize::try_from(stored.compressed_size)) {
            // Others take no more memory whole, and less time.
            (Some(found), Ok(length)) if length > MAX_BLOCKS * BLOCK => {
                Section::in_file(Arc::clone(found), stored.offset, length, endian(file))
            }
            _ => Section::whole(section_bytes(section, left)?, endian(file)),
        })
    }

    pub(super) fn into_owned(self) -> Section<'static> {
        let bytes = match self.bytes {
            Bytes::Whole(bytes) => Bytes::Whole(Cow::Owned(bytes.into_owned())),
            Bytes::InFile { file, start, blocks } => Bytes::InFile { file, start, blocks },
        };
        Section { bytes, ..self }
    }

    pub(super) fn whole(bytes: Cow<'a, [u8]>, endian: RunTimeEndian) -> Section<'a> {
        Section { length: bytes.len(), bytes: Bytes::Whole(bytes), endian }
    }

    /// The `length` bytes of a file from `start` on.
    fn in_file(
        file: Arc<OpenedFile>,
        start: u64,
        length: usize,
        endian: RunTimeEndian,
    ) -> Section<'a> {
        let read = (0..length.div_ceil(BLOCK)).map(|_| None).collect();
        let blocks = RefCell::new(Blocks { read, order: VecDeque::new() });
        Section { bytes: Bytes::InFile { file, start, blocks }, length, endian }
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { section: self, at: 0, end: self.length }
    }

    /// Hands over the bytes at a place, as many of them as are at hand together.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    #[inline]
    fn with<T>(&self, at: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        match &self.bytes {
            Bytes::Whole(bytes) => Ok(take(&bytes[at..])),
            Bytes::InFile { file, start, blocks } => {
                let (block, within) = (at / BLOCK, at % BLOCK);
                if let Some(Some(bytes)) = blocks.borrow().read.get(block) {
                    return Ok(take(&bytes[within..]));
                }
                let place = start + (block * BLOCK) as u64;
                let length = (self.length - block * BLOCK).min(BLOCK);
                let bytes = file.read(place, length as u64).ok_or(Error::Io)?;
                let taken = take(&bytes[within..]);
                blocks.borrow_mut().add(block, bytes.into());
                Ok(taken)
            }
        }
    }
}

impl Blocks {
    #[cold]
    fn add(&mut self, block: usize, bytes: Box<[u8]>) {
        self.read[block] = Some(bytes);
        self.order.push_back(block);
        if self.order.len() > MAX_BLOCKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.read[oldest] = None;
        }
    }
}

impl Default for Section<'_> {
    fn default() -> Self {
        Section::whole(Cow::default(), RunTimeEndian::default())
    }
}

/// Reads a part of a section.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    section: &'a Section<'a>,
    at: usize,
    end: usize,
}

impl Reader<'_> {
    fn check(&self, length: usize) -> Result<()> {
        match length <= self.end - self.at {
            true => Ok(()),
            false => Err(Error::UnexpectedEof(self.offset_id())),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.clone().read_slice(&mut bytes)?;
        Ok(bytes)
    }

    /// The text, with a replacement for each part that is not UTF-8; empty if it cannot be read.
    pub(super) fn text(&self) -> String {
        self.to_string_lossy().unwrap_or_default().into_owned()
    }
}

impl gimli::Reader for Reader<'_> {
    type Endian = RunTimeEndian;
    type Offset = usize;

    fn endian(&self) -> RunTimeEndian {
        self.section.endian
    }

    #[inline]
    fn len(&self) -> usize {
        self.end - self.at
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    #[inline]
    fn truncate(&mut self, length: usize) -> Result<()> {
        self.check(length)?;
        self.end = self.at + length;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at - base.at
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let at = usize::try_from(id.0).ok()?;
        (self.at..=self.end).contains(&at).then(|| at - self.at)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut from = self.at;
        while from < self.end {
            let (found, length) = self.section.with(from, |bytes| {
                let bytes = &bytes[..bytes.len().min(self.end - from)];
                (memchr::memchr(byte, bytes), bytes.len())
            })?;
            if let Some(found) = found {
                return Ok(from + found - self.at);
            }
            from += length;
        }
        Err(Error::UnexpectedEof(self.offset_id()))
    }

    #[inline]
    fn skip(&mut self, length: usize) -> Result<()> {
        self.check(length)?;
        self.at += length;
        Ok(())
    }

    #[inline]
    fn split(&mut self, length: usize) -> Result<Self> {
        let mut split = *self;
        split.truncate(length)?;
        self.at += length;
        Ok(split)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.bytes().map(Cow::Owned)
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        let text = String::from_utf8(self.bytes()?).map_err(|_| Error::BadUtf8)?;
        Ok(Cow::Owned(text))
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        let text = String::from_utf8(self.bytes()?);
        Ok(Cow::Owned(
            text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        ))
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        self.check(1)?;
        let byte = self.section.with(self.at, |bytes| bytes[0])?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn read_slice(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.check(buffer.len())?;
        let mut rest = buffer;
        while !rest.is_empty() {
            let length = self.section.with(self.at, |bytes| {
                let length = bytes.len().min(rest.len());
                rest[..length].copy_from_slice(&bytes[..length]);
                length
            })?;
            rest = &mut rest[length..];
            self.at += length;
        }
        Ok(())
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.at, self.end)
    }
}
