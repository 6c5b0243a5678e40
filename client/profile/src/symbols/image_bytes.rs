//! The bytes of an ELF file, read as they are needed.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use object::{Object as _, ObjectSection as _, ReadCache, ReadRef};

/// A file as its parser sees it.
pub type ElfFile<'a> = object::File<'a, &'a ImageBytes>;

/// The parser reads structures that are aligned in the file, and so have to be in memory.
const ALIGNMENT: u64 = 16;

/// The bytes of a file in parts that begin and end with its sections: of a program with hundreds of
/// megabytes, a few sections serve.
///
/// A part is read when it is first asked for, unless the file has changed since it was opened. It
/// is not mapped: a build that overwrites it meanwhile cannot kill the client.
pub struct ImageBytes {
    file: Option<Arc<OpenedFile>>,
    /// In the order of their places, without gaps.
    parts: Vec<Part>,
    /// All parts together, for what lies in several.
    whole: OnceLock<Option<Vec<u8>>>,
}

/// A file that is read only as long as it is what it was when it was opened.
pub(super) struct OpenedFile {
    file: Mutex<File>,
    /// When it was modified, and its length, before its first byte was read.
    opened: (SystemTime, u64),
    has_changed: AtomicBool,
}

impl OpenedFile {
    /// The bytes from a place on; `None` if they cannot be read.
    pub(super) fn read(&self, start: u64, length: u64) -> Option<Vec<u8>> {
        let mut file = self.file.lock().ok()?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        file.seek(SeekFrom::Start(start)).ok()?;
        let is_whole = match file.read_exact(&mut bytes) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return None,
            read => read.is_ok(),
        };
        let now = file.metadata().ok()?;
        let now = now.modified().ok().map(|modified| (modified, now.len()));
        let is_same = now == Some(self.opened) && is_whole;
        self.has_changed.fetch_or(!is_same, Ordering::Relaxed);
        is_same.then_some(bytes)
    }
}

struct Part {
    place: Range<u64>,
    /// From the aligned place in front of it on; `None` if it cannot be read.
    bytes: OnceLock<Option<Vec<u8>>>,
}

impl Part {
    fn first(&self) -> u64 {
        self.place.start - self.place.start % ALIGNMENT
    }
}

impl From<Vec<u8>> for ImageBytes {
    fn from(bytes: Vec<u8>) -> ImageBytes {
        let place = 0..bytes.len() as u64;
        let part = Part { place, bytes: OnceLock::from(Some(bytes)) };
        ImageBytes { file: None, parts: vec![part], whole: OnceLock::new() }
    }
}

impl ImageBytes {
    /// Of a regular file that says that it has this length.
    pub(super) fn of_file(file: File, length: u64) -> io::Result<ImageBytes> {
        let opened = (file.metadata()?.modified()?, length);
        let mut cuts = vec![0, length];
        if let Ok(parsed) = object::File::parse(&ReadCache::new(&file)) {
            for (start, size) in parsed.sections().filter_map(|section| section.file_range()) {
                cuts.extend([start.min(length), start.saturating_add(size).min(length)]);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let part = |cut: &[u64]| Part { place: cut[0]..cut[1], bytes: OnceLock::new() };
        let has_changed = AtomicBool::new(false);
        let file = OpenedFile { file: Mutex::new(file), opened, has_changed };
        Ok(ImageBytes {
            file: Some(Arc::new(file)),
            parts: cuts.windows(2).map(part).collect(),
            whole: OnceLock::new(),
        })
    }

    pub(crate) fn length(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.place.end)
    }

    /// Whether something could not be read as the file had changed.
    pub(crate) fn has_changed(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_changed.load(Ordering::Relaxed))
    }

    /// The file that holds these bytes as they are; `None` if they are in memory alone.
    pub(super) fn file_with(&self, place: &Range<u64>) -> Option<&Arc<OpenedFile>> {
        self.file.as_ref().filter(|file| place.end <= file.opened.1)
    }

    /// The bytes at a place; `None` if the file does not have them.
    pub(crate) fn get(&self, place: Range<u64>) -> Option<&[u8]> {
        let (bytes, first) = match self.part_at(place.start) {
            // An empty section lies where the next one begins.
            _ if place.is_empty() => return (place.end <= self.length()).then_some(&[]),
            Some(at) if place.end <= self.parts[at].place.end => {
                let part = &self.parts[at];
                (part.bytes.get_or_init(|| self.read(part)).as_ref()?, part.first())
            }
            _ if place.end <= self.length() => {
                (self.whole.get_or_init(|| self.read_all()).as_ref()?, 0)
            }
            _ => return None,
        };
        let within = |at: u64| usize::try_from(at.checked_sub(first)?).ok();
        bytes.get(within(place.start)?..within(place.end)?)
    }

    fn part_at(&self, at: u64) -> Option<usize> {
        self.parts.partition_point(|part| part.place.start <= at).checked_sub(1)
    }

    fn read(&self, part: &Part) -> Option<Vec<u8>> {
        self.file.as_ref()?.read(part.first(), part.place.end - part.first())
    }

    fn read_all(&self) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(usize::try_from(self.length()).ok()?);
        for part in &self.parts {
            all.extend_from_slice(self.get(part.place.clone())?);
        }
        Some(all)
    }

    /// Puts bytes in the place of others that were read; they lie in one part.
    pub(super) fn replace(&mut self, at: u64, new: &[u8]) {
        let part = self.part_at(at).map(|part| &mut self.parts[part]);
        let place = part.and_then(|part| {
            let within = usize::try_from(at - part.first()).ok()?;
            part.bytes.get_mut()?.as_mut()?.get_mut(within..within.checked_add(new.len())?)
        });
        if let Some(place) = place {
            place.copy_from_slice(new);
        }
    }

    /// Puts bytes behind the others; answers where.
    pub(super) fn append(&mut self, bytes: Vec<u8>) -> u64 {
        let start = self.length();
        let part = Part { place: start..start + bytes.len() as u64, bytes: OnceLock::new() };
        let mut aligned = vec![0; (start - part.first()) as usize];
        aligned.extend(bytes);
        self.parts.push(Part { bytes: OnceLock::from(Some(aligned)), ..part });
        start
    }
}

impl<'a> ReadRef<'a> for &'a ImageBytes {
    fn len(self) -> Result<u64, ()> {
        Ok(self.length())
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).ok_or(())?;
        self.get(offset..end).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = self.get(range).ok_or(())?;
        let length = bytes.iter().position(|byte| *byte == delimiter).ok_or(())?;
        Ok(&bytes[..length])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use unikprof_test_kit::elf::TestElf;

    /// Guards 600 MB of memory for an image of that size.
    #[test]
    fn sections_that_nobody_asks_for_are_not_read() {
        let elf = TestElf::new(&[0xf4; 16], &[(".rest", 0, &[7; 5_000]), (".odd", 0, &[9; 3])]);
        let bytes = elf.bytes();
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &bytes).unwrap();
        let image = ImageBytes::of_file(file, bytes.len() as u64).unwrap();
        let parsed = ElfFile::parse(&image).unwrap();
        let read = || -> u64 {
            let read = image.parts.iter().filter(|part| part.bytes.get().is_some());
            read.map(|part| part.place.end - part.place.start).sum()
        };
        assert_eq!(parsed.section_by_name(".odd").unwrap().data().unwrap(), [9; 3]);
        assert!(read() < 5_000, "{} bytes", read());
        // What lies in several parts is there, too.
        let end = image.length() - 1;
        assert_eq!(image.get(1..end).unwrap(), &bytes[1..end as usize]);
        assert_eq!((image.length(), image.get(0..end + 2)), (bytes.len() as u64, None));
    }

    /// Guards names from two builds.
    #[test]
    fn a_file_that_has_changed_is_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, [1; 10]).unwrap();
        let image = ImageBytes::of_file(file.reopen().unwrap(), 10).unwrap();
        let later = SystemTime::now() + Duration::from_secs(3);
        file.as_file().set_modified(later).unwrap();
        assert_eq!(image.get(0..10), None);
        let image = ImageBytes::of_file(file.reopen().unwrap(), 10).unwrap();
        assert_eq!(image.get(0..10), Some(&[1; 10][..]));
        // It grew after its length was read.
        let image = ImageBytes::of_file(file.reopen().unwrap(), 9).unwrap();
        assert_eq!((image.get(0..9), image.has_changed()), (None, true));
    }
}
