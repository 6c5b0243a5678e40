//! Functions, inlined functions and lines from DWARF.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use addr2line::{Context, SplitDwarfLoad};
use gimli::{
    ColumnType, DW_LANG_Rust, DebugInfoOffset, Dwarf, DwarfPackage, DwarfSections, EndianSlice,
    RunTimeEndian, SectionId, UnitOffset,
};
use object::{CompressedData, CompressionFormat, Object, ObjectSection};

use super::demangle::{is_mangled, without_generics};
use super::identity::has_place;
use super::image_bytes::{ElfFile, ImageBytes};
use super::scopes::Scopes;
use super::source_paths::SourcePaths;
use super::split_info::SplitInfo;

pub(super) type Reader<'a> = EndianSlice<'a, RunTimeEndian>;

/// The sections of one file, decompressed where they need to be.
pub struct DebugSections<'a> {
    sections: DwarfSections<Cow<'a, [u8]>>,
    endian: RunTimeEndian,
    split: SplitInfo,
    /// The first section that could not be read, and why.
    pub(super) damage: Option<object::Error>,
}

impl<'a> DebugSections<'a> {
    /// Reads the sections, or `None` where the file has no debug information.
    pub fn of(file: &ElfFile<'a>) -> Option<DebugSections<'a>> {
        let has = |id: SectionId| {
            // An empty `.debug_info` is what `strip --only-keep-debug` leaves behind.
            file.section_by_name(id.name()).is_some_and(|s| s.size() != 0)
        };
        if !has(SectionId::DebugInfo) {
            return None;
        }
        let mut damage = None;
        let left = Cell::new(MOST_DECOMPRESSED);
        let load = |id: SectionId| -> Result<Cow<'a, [u8]>, gimli::Error> {
            // Nobody asks for macros, or where a program's values are.
            use SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
            let is_used = !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro);
            let section = is_used.then(|| file.section_by_name(id.name())).flatten();
            let Some(section) = section else {
                return Ok(Cow::default());
            };
            Ok(section_bytes(&section, &left).unwrap_or_else(|error| {
                damage.get_or_insert(error);
                Cow::default()
            }))
        };
        let sections = DwarfSections::load(load).ok()?;
        let endian =
            if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        Some(DebugSections { sections, endian, split: SplitInfo::default(), damage })
    }

    /// Reads what `file`, which these are of, has in other files; see [`SplitInfo::of`].
    pub(super) fn read_split(
        &mut self,
        file: &ElfFile<'_>,
        paths: &[&Path],
        debug_dirs: &[PathBuf],
    ) {
        let mut units = self.dwarf().units();
        let units = std::iter::from_fn(|| units.next().ok()?).count();
        self.split = SplitInfo::of(file, units, paths, debug_dirs);
    }

    /// The first file that was needed and not found.
    pub(super) fn missing(&self) -> Option<&PathBuf> {
        self.split.missing.get()
    }

    /// Reads the table of units.
    ///
    /// # Errors
    ///
    /// Where that table is damaged; single damaged functions show when they are looked up.
    pub fn open(&'a self) -> Result<DebugInfo<'a>, gimli::Error> {
        Ok(DebugInfo {
            context: Context::from_dwarf(self.dwarf())?,
            sections: self,
            package: self.split.package(self.endian),
            scopes: OnceCell::new(),
            split_scopes: RefCell::default(),
            source_paths: OnceCell::new(),
            starts: RefCell::default(),
        })
    }

    fn dwarf(&'a self) -> Dwarf<Reader<'a>> {
        let borrow = |section| EndianSlice::new(section, self.endian);
        self.sections.borrow_with_sup(self.split.shared.as_ref(), |section| borrow(section))
    }
}

/// The bytes of a section, decompressed.
pub fn section_bytes<'a>(
    section: &object::Section<'a, '_, &'a ImageBytes>,
    left: &Cell<u64>,
) -> object::Result<Cow<'a, [u8]>> {
    decompress(section.compressed_data()?, left)
}

/// The most that the sections of a file may be decompressed to together: their sizes are whatever
/// the file says.
pub const MOST_DECOMPRESSED: u64 = 4 << 30;

/// The bytes, decompressed; empty if that takes more than is `left`.
pub(super) fn decompress<'a>(
    data: CompressedData<'a>,
    left: &Cell<u64>,
) -> object::Result<Cow<'a, [u8]>> {
    if data.format != CompressionFormat::None {
        match left.get().checked_sub(data.uncompressed_size) {
            None => return Ok(Cow::default()),
            Some(rest) => left.set(rest),
        }
    }
    data.decompress()
}

/// Ready to look addresses up.
pub struct DebugInfo<'a> {
    context: Context<Reader<'a>>,
    sections: &'a DebugSections<'a>,
    package: Option<DwarfPackage<Reader<'a>>>,
    /// Read when the first bare name needs them.
    scopes: OnceCell<Scopes<'a>>,
    /// Those of units in other files, by the units' identities.
    split_scopes: RefCell<HashMap<u64, Rc<Scopes<'a>>>>,
    source_paths: OnceCell<SourcePaths>,
    /// By unit and address, the first row of a line table for it.
    starts: RefCell<HashMap<usize, Rc<Starts>>>,
}

type Starts = BTreeMap<u64, Rc<Declared>>;

/// Where a function is declared; in the order of the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declared {
    pub(super) file: String,
    /// 0 if it is unknown, as the column.
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Declared {
    fn without_folder(&self) -> Declared {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        Declared { file: file.to_owned(), ..*self }
    }

    /// As `main.ml:12,4`.
    pub fn text(&self) -> String {
        let Declared { file, .. } = self.without_folder();
        match self.column {
            0 => format!("{file}:{}", self.line),
            column => format!("{file}:{},{column}", self.line),
        }
    }
}

/// A function at an address, or one inlined there.
pub(super) struct FoundFrame<'a> {
    /// Mangled where the language mangles; `None` where DWARF names no function.
    pub(super) raw_name: Option<Cow<'a, str>>,
    /// Its name with the scopes it was declared in, where the raw name lacks them and they are
    /// known.
    pub(super) path: Option<Rc<str>>,
    /// Where it is declared, if others may have its name.
    pub(super) declared: Option<Rc<Declared>>,
    /// Whether it was inlined into the function that is handed over next.
    pub(super) inlined: bool,
    pub(super) file: Option<&'a str>,
    pub(super) line: Option<u32>,
}

impl<'a> DebugInfo<'a> {
    /// More inlined functions at one address than any compiler makes.
    const MAX_INLINED: usize = 256;

    /// Hands over the functions at an address, innermost first; none where DWARF does not know
    /// the address.
    ///
    /// # Errors
    ///
    /// Where the debug information of this place is damaged; what came before it was handed
    /// over.
    pub(super) fn find(
        &self,
        address: u64,
        mut each: impl FnMut(FoundFrame<'_>),
    ) -> Result<(), gimli::Error> {
        for (load, go_on) in self.context.preload_units(address) {
            // What is wrong with it is told below.
            let _ = go_on(self.load(&load));
        }
        let mut frames = self.context.find_frames(address).skip_all_loads()?;
        let mut next = frames.next()?;
        for _ in 0..Self::MAX_INLINED {
            let Some(frame) = next else { break };
            let after = frames.next();
            let file = frame.location.as_ref().and_then(|l| l.file);
            let (raw_name, is_rust) = match &frame.function {
                Some(f) => (Some(f.raw_name()?), f.language == Some(DW_LANG_Rust)),
                None => (None, false),
            };
            let bare = raw_name.as_deref().filter(|raw| !is_mangled(raw));
            let path = bare.and_then(|bare| {
                let entry = frame.dw_die_offset;
                let declared = entry.and_then(|entry| self.path(address, entry));
                declared.or_else(|| {
                    let file = file.filter(|_| is_rust)?;
                    let module = self.source_paths().module_of(file)?;
                    Some(format!("{module}::{}", without_generics(bare)).into())
                })
            });
            let is_told = |raw: &&str| (!is_rust || is_mangled(raw)) && has_place(raw);
            let declared = raw_name.as_deref().filter(is_told).and_then(|_| {
                let declared = self.in_scopes(address, frame.dw_die_offset?, Scopes::declared)?;
                // Copies of Rust's functions have different paths for one file.
                Some(if is_rust { Rc::new(declared.without_folder()) } else { declared })
            });
            each(FoundFrame {
                declared,
                path,
                raw_name,
                inlined: !matches!(after, Ok(None)),
                file,
                line: frame.location.and_then(|l| l.line).filter(|line| *line != 0),
            });
            next = after?;
        }
        Ok(())
    }

    /// Where the function at `start` is declared: the first row of the line table for its first
    /// instruction. `None` if no line is known.
    ///
    /// [`find`](Self::find) has the last row for it, which may be that of an inlined function.
    pub fn declared_at(&self, start: u64) -> Option<Rc<Declared>> {
        self.starts(start)?.get(&start).cloned()
    }

    /// The places of the code at these addresses of one unit.
    pub(super) fn places(&self, code: Range<u64>) -> Vec<Rc<Declared>> {
        let starts = self.starts(code.start).filter(|_| code.start <= code.end);
        starts.map_or_else(Vec::new, |starts| starts.range(code).map(|it| it.1.clone()).collect())
    }

    /// The first rows for the addresses of the unit that holds this one.
    fn starts(&self, address: u64) -> Option<Rc<Starts>> {
        let unit = self.context.find_dwarf_and_unit(address);
        let unit = unit.skip_all_loads()?;
        let key = unit.header.offset().0;
        let known = self.starts.borrow().get(&key).cloned();
        Some(known.unwrap_or_else(|| {
            let read = Rc::new(starts_of(&unit).unwrap_or_default());
            self.starts.borrow_mut().insert(key, Rc::clone(&read));
            read
        }))
    }

    /// The name with its scopes of the function that has this entry in the unit of an address.
    fn path(&self, address: u64, entry: UnitOffset) -> Option<Rc<str>> {
        self.in_scopes(address, entry, Scopes::path)
    }

    /// Looks an entry in the unit of an address up in the scopes of the file that holds the unit.
    fn in_scopes<T>(
        &self,
        address: u64,
        entry: UnitOffset,
        look: impl FnOnce(&Scopes<'a>, usize) -> Option<T>,
    ) -> Option<T> {
        let unit = self.context.find_dwarf_and_unit(address);
        let unit = unit.skip_all_loads()?;
        let DebugInfoOffset(entry) = entry.to_debug_info_offset(&unit.header)?;
        let split = unit.dwo_id.and_then(|id| self.split_scopes.borrow().get(&id.0).cloned());
        let main = || self.scopes.get_or_init(|| Scopes::of(self.sections.dwarf().into()));
        look(split.as_deref().unwrap_or_else(main), entry)
    }

    /// The information of a unit that is in another file.
    fn load(&self, load: &SplitDwarfLoad<Reader<'a>>) -> Option<Arc<Dwarf<Reader<'a>>>> {
        let package = self.package.as_ref();
        let packed = package.and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        let unit = packed.map(Arc::new);
        let unit = unit.or_else(|| self.sections.split.unit(load, self.sections.endian))?;
        let scopes = Rc::new(Scopes::of(Arc::clone(&unit)));
        self.split_scopes.borrow_mut().insert(load.dwo_id.0, scopes);
        Some(unit)
    }

    fn source_paths(&self) -> &SourcePaths {
        self.source_paths.get_or_init(|| SourcePaths::of(&self.sections.dwarf()))
    }
}

/// By address, the first row of a unit's line table for it.
fn starts_of(unit: &gimli::UnitRef<'_, Reader<'_>>) -> Option<Starts> {
    let mut starts = Starts::new();
    let mut rows = unit.line_program.clone()?.rows();
    while let Ok(Some((header, row))) = rows.next_row() {
        if row.end_sequence() || starts.contains_key(&row.address()) {
            continue;
        }
        let path = row.file(header).and_then(|file| unit.attr_string(file.path_name()).ok());
        let (Some(path), Some(line)) = (path, row.line()) else {
            continue;
        };
        let column = match row.column() {
            ColumnType::LeftEdge => 0,
            ColumnType::Column(column) => column.get(),
        };
        let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let declared = Declared {
            file: path.to_string_lossy().into_owned(),
            line: short(line.get()),
            column: short(column),
        };
        starts.insert(row.address(), Rc::new(declared));
    }
    Some(starts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write as _;

    use super::*;

    /// Guards a file of many sections that each take as much memory as one may.
    #[test]
    fn sections_share_the_room_that_they_are_decompressed_to() {
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        stream.write_all(&[0; 80]).unwrap();
        let data = stream.finish().unwrap();
        let left = Cell::new(100);
        let lengths = [(); 2].map(|()| {
            let format = CompressionFormat::Zlib;
            let data = CompressedData { format, data: &data, uncompressed_size: 80 };
            decompress(data, &left).unwrap().len()
        });
        assert_eq!(lengths, [80, 0]);
    }
}
