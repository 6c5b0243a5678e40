//! Functions, inlined functions and lines from DWARF.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use gimli::{ColumnType, Dwarf, DwarfPackage, DwarfSections, RunTimeEndian, SectionId};
use object::{CompressedData, CompressionFormat, Object, ObjectSection};

use super::demangle::{is_mangled, without_generics};
use super::identity::has_place;
use super::image_bytes::{ElfFile, ImageBytes};
use super::scopes::{ScopedUnit, Scopes};
use super::section::{Reader, Section};
use super::source_paths::SourcePaths;
use super::split_info::{SplitInfo, SplitUnit};
use super::unit_code::Inlining;
use super::unit_ranges::UnitRanges;

/// The sections of one file, decompressed where they need to be.
pub struct DebugSections<'a> {
    sections: DwarfSections<Section<'a>>,
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
        let endian = endian(file);
        let load = |id: SectionId| -> Result<Section<'a>, gimli::Error> {
            // Nobody asks for macros, or where a program's values are.
            use SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
            let is_used = !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro);
            let section = is_used.then(|| file.section_by_name(id.name())).flatten();
            let section = section.map_or_else(
                || Ok(Section::whole(Cow::default(), endian)),
                |section| Section::of(file, &section, &left),
            );
            Ok(section.unwrap_or_else(|error| {
                damage.get_or_insert(error);
                Section::whole(Cow::default(), endian)
            }))
        };
        let sections = DwarfSections::load(load).ok()?;
        Some(DebugSections { sections, split: SplitInfo::default(), damage })
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
    #[expect(clippy::arc_with_non_send_sync, reason = "gimli shares files by an Arc")]
    pub fn open(&'a self) -> Result<DebugInfo<'a>, gimli::Error> {
        let dwarf = self.dwarf();
        Ok(DebugInfo {
            ranges: UnitRanges::read(&dwarf)?,
            sections: self,
            package: self.split.package(),
            scopes: Scopes::of(Arc::new(dwarf), None),
            split: RefCell::default(),
            source_paths: OnceCell::new(),
            starts: RefCell::default(),
        })
    }

    fn dwarf(&'a self) -> Dwarf<Reader<'a>> {
        self.sections.borrow_with_sup(self.split.shared.as_ref(), Section::reader)
    }
}

pub(super) fn endian(file: &ElfFile<'_>) -> RunTimeEndian {
    if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
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
    ranges: UnitRanges,
    sections: &'a DebugSections<'a>,
    package: Option<DwarfPackage<Reader<'a>>>,
    scopes: Scopes<'a>,
    /// By the offset of a unit, what it has in another file.
    split: RefCell<HashMap<usize, Split<'a>>>,
    source_paths: OnceCell<SourcePaths>,
    /// By unit and address, the first row of a line table for it.
    starts: RefCell<HashMap<usize, Rc<Starts>>>,
}

type Split<'a> = Result<Option<Rc<SplitUnit<'a>>>, gimli::Error>;

/// Where the debug information of an address was found.
struct Found<'a> {
    /// The unit of the file, which has the lines.
    unit: Rc<ScopedUnit<'a>>,
    /// The rest of it, if that is in another file.
    split: Option<Rc<SplitUnit<'a>>>,
    /// `None` if only the line is known.
    function: Option<Rc<Inlining<'a>>>,
}

impl<'a> Found<'a> {
    /// The unit that has the functions, and what it lies in.
    fn functions<'f>(&'f self, file: &'f Scopes<'a>) -> (&'f Scopes<'a>, &'f ScopedUnit<'a>) {
        match &self.split {
            Some(split) => (&split.scopes, &split.unit),
            None => (file, &self.unit),
        }
    }
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
        let Some(found) = self.at(address).next().transpose()? else { return Ok(()) };
        let lines = self.scopes.lines(&found.unit)?;
        let (mut file, mut line) = lines.and_then(|lines| lines.find(address)).unwrap_or_default();
        let Some(inlining) = &found.function else {
            let (raw_name, path, declared) = Default::default();
            each(FoundFrame { declared, path, raw_name, inlined: false, file, line });
            return Ok(());
        };
        let (scopes, scoped) = found.functions(&self.scopes);
        let start = scoped.unit.header.offset().0;
        let is_rust = scoped.is_rust;
        let mut inlined = inlining.at(address);
        for _ in 0..Self::MAX_INLINED {
            let callee = inlined.pop();
            let frame = callee.unwrap_or(&inlining.function);
            let entry = start + frame.entry.0;
            let raw_name = frame.name.as_ref().map(gimli::Reader::to_string_lossy).transpose()?;
            let bare = raw_name.as_deref().filter(|raw| !is_mangled(raw));
            let path = bare.and_then(|bare| {
                scopes.path(entry).or_else(|| {
                    let module = self.source_paths().module_of(file.filter(|_| is_rust)?)?;
                    Some(format!("{module}::{}", without_generics(bare)).into())
                })
            });
            let is_told = |raw: &&str| (!is_rust || is_mangled(raw)) && has_place(raw);
            let declared = raw_name.as_deref().filter(is_told).and_then(|_| {
                let declared = scopes.declared(entry)?;
                // Copies of Rust's functions have different paths for one file.
                Some(if is_rust { Rc::new(declared.without_folder()) } else { declared })
            });
            each(FoundFrame { declared, path, raw_name, inlined: callee.is_some(), file, line });
            let Some(callee) = callee else { break };
            let call_file = callee.call_file;
            file = call_file.and_then(|number| lines.and_then(|lines| lines.file(number)));
            line = Some(callee.call_line).filter(|line| *line != 0);
        }
        Ok(())
    }

    /// The debug information of an address: of several units, the first has it.
    fn at(&self, address: u64) -> impl Iterator<Item = Result<Found<'a>, gimli::Error>> {
        let units = self.ranges.find(address).filter_map(|at| self.scopes.unit(at));
        let units: Vec<_> = units.collect();
        for (at, unit) in &units {
            // What is wrong with it is told below.
            let _ = self.split(*at, unit);
        }
        units.into_iter().filter_map(move |(at, unit)| {
            let find = || {
                let mut found = Found { split: self.split(at, &unit)?, unit, function: None };
                let (scopes, scoped) = found.functions(&self.scopes);
                found.function = scopes.function_at(scoped, address)?;
                let lines = self.scopes.lines(&found.unit)?;
                let is_known = found.function.is_some()
                    || lines.is_some_and(|lines| lines.find(address).is_some());
                Ok(is_known.then_some(found))
            };
            find().transpose()
        })
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
        let found = self.at(address).find_map(Result::ok)?;
        let unit = &found.unit.unit;
        let key = unit.header.offset().0;
        let known = self.starts.borrow().get(&key).cloned();
        Some(known.unwrap_or_else(|| {
            let read = starts_of(&unit.unit_ref(self.scopes.dwarf()));
            let read = Rc::new(read.unwrap_or_default());
            self.starts.borrow_mut().insert(key, Rc::clone(&read));
            read
        }))
    }

    /// What a unit has in another file.
    fn split(&self, at: usize, scoped: &Rc<ScopedUnit<'a>>) -> Split<'a> {
        let Some(id) = scoped.unit.dwo_id else { return Ok(None) };
        if let Some(known) = self.split.borrow().get(&at) {
            return known.clone();
        }
        let dwarf = self.scopes.dwarf();
        let package = self.package.as_ref();
        let packed = package.and_then(|package| package.find_cu(id, dwarf).ok()?);
        let read = || {
            let files = &self.sections.split;
            let found = packed.map(|packed| Ok(Some(packed)));
            let found = found.unwrap_or_else(|| files.unit(id, &scoped.unit, dwarf))?;
            found.map_or(Ok(None), |found| SplitUnit::of(found, scoped, dwarf))
        };
        let read = read().map(|read| read.map(Rc::new));
        self.split.borrow_mut().insert(at, read.clone());
        read
    }

    fn source_paths(&self) -> &SourcePaths {
        self.source_paths.get_or_init(|| SourcePaths::of(self.scopes.dwarf()))
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
        let declared =
            Declared { file: path.text(), line: short(line.get()), column: short(column) };
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
