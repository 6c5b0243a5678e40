//! The caller table of one image.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice,
    LittleEndian, UnwindSection,
};
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags, elf};
use unikprof_proto::caller_table::{Row, Rule, file_head};

use super::error::CompileError;
use super::instructions::{is_padding, tell};
use super::processor::Processor;
use super::section::{self, SectionCalls};
use super::stretches::{
    Detail, Known, RowBuilder, RuleRange, TooManyRows, fill_gaps, resolve_overlaps,
};
use crate::profile::{BuildId, Mapping};
use crate::symbols::{
    ElfFile, Image, ImageBytes, MOST_DECOMPRESSED, find_debug_file, section_bytes,
};

/// The most rows of one table: far beyond any agent's memory, well within ours.
pub(super) const MAX_ROWS: usize = 1 << 24;

/// The longest instructions that tell a rule: `endbr64` and `push %rbp`.
const MAX_TOLD: u64 = 5;

/// The longest gap between two functions that may be padding: a cache line or two.
const MAX_PADDING: u64 = 128;

/// The rules of one image, by its link addresses.
#[derive(Debug, Clone)]
pub struct ImageTable {
    path: PathBuf,
    processor: Processor,
    build_id: Option<BuildId>,
    position_independent: bool,
    /// The lowest address of any segment.
    base: u64,
    /// Executable, sorted by address.
    segments: Vec<Segment>,
    stretches: Vec<RuleRange>,
    /// Where functions begin, ascending.
    functions: Vec<u64>,
    tally: Tally,
}

/// What a table was made from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Functions that the call frame information describes.
    pub functions: usize,
    /// Of these, those whose description makes no sense somewhere.
    pub damaged: usize,
    /// Bytes of code that two functions describe in different ways; nothing is known there.
    pub contradicted_bytes: u64,
}

/// A loadable, executable segment, as far as the file holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    file_offset: u64,
    /// Address and file offset plus the size do not overflow.
    size: u64,
}

impl Segment {
    pub(super) fn end(&self) -> u64 {
        self.address + self.size
    }
}

impl ImageTable {
    /// Compiles an image's call frame information: `.eh_frame`, and where that says nothing
    /// `.debug_frame`; where the image has neither, those of its separate debug file, looked for as
    /// for symbols.
    ///
    /// # Errors
    /// [`CompileError`]: another processor, no code, no call frame information or a damaged section.
    /// Single functions that make no sense are left out and counted.
    pub fn compile(image: &Image, debug_dirs: &[PathBuf]) -> Result<ImageTable, CompileError> {
        let compiled = ImageTable::compile_unchanged(image, debug_dirs);
        unless_changed(image, compiled)
    }

    /// The same unless the image changes meanwhile.
    fn compile_unchanged(
        image: &Image,
        debug_dirs: &[PathBuf],
    ) -> Result<ImageTable, CompileError> {
        let path = image.path();
        let damaged = |problem| CompileError::Elf { path: path.into(), problem };
        let file = ElfFile::parse(image.bytes()).map_err(damaged)?;
        let Some(processor) = Processor::of_file(&file) else {
            return Err(CompileError::Architecture {
                path: path.into(),
                found: format!("{:?}", file.architecture()).to_lowercase(),
            });
        };
        let segments = executable_segments(&file, image.bytes().length());
        if segments.is_empty() {
            return Err(CompileError::NoCode { path: path.into() });
        }
        let mut found = call_frames(path, &file, processor, &segments)?;
        if found.is_none()
            && let Some(debug) = find_debug_file(image, &file, debug_dirs, &mut Vec::new())
            && let Ok(debug_file) = ElfFile::parse(debug.bytes())
        {
            let frames = call_frames(debug.path(), &debug_file, processor, &segments);
            found = unless_changed(&debug, frames)?;
        }
        let Some(mut calls) = found else {
            return Err(CompileError::NoCallFrames { path: path.into() });
        };
        if calls.functions.is_empty() {
            return Err(CompileError::NoFunctions {
                path: path.into(),
                elsewhere: calls.elsewhere,
                damaged: calls.damaged,
            });
        }
        look_at_code(&mut calls.stretches, processor, &segments, image.bytes());
        let described = calls.functions.len();
        calls.functions.sort_unstable();
        calls.functions.dedup();
        Ok(ImageTable {
            path: path.into(),
            processor,
            build_id: image.build_id().cloned(),
            position_independent: image.is_position_independent(),
            base: file.segments().map(|s| s.address()).min().unwrap_or(0),
            segments,
            stretches: calls.stretches,
            functions: calls.functions,
            tally: Tally {
                functions: described,
                damaged: calls.damaged,
                contradicted_bytes: calls.contradicted,
            },
        })
    }

    /// The build-id of the image.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// What the table was made from.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// What holds at an address that the linker gave; [`Rule::UNKNOWN`] where nothing is known.
    pub(crate) fn rule_at(&self, linked: u64) -> Rule {
        let until = self.stretches.partition_point(|s| s.start <= linked);
        let holds = self.stretches[..until].last().filter(|s| linked < s.end);
        match holds.map(|stretch| stretch.known) {
            Some(Known::Rule(rule) | Known::Told(rule)) => rule,
            // Linkage tables jump; no call returns to one.
            Some(Known::LinkageTable(_) | Known::Padding) | None => Rule::UNKNOWN,
        }
    }

    /// All rows, keyed by file offset.
    pub fn rows(&self) -> Result<Vec<Row>, CompileError> {
        let mut segments = self.segments.clone();
        segments.sort_by_key(|segment| segment.file_offset);
        let mut rows = RowBuilder::new(Detail::Full, MAX_ROWS);
        let fits = segments.last().is_some_and(|last| last.file_offset + last.size <= 1 << 32);
        let too_large = || CompileError::TooLarge { path: self.path.clone() };
        if !fits {
            return Err(too_large());
        }
        for segment in segments {
            let added =
                rows.add(&self.stretches, segment.address..segment.end(), segment.file_offset);
            added.map_err(|TooManyRows| too_large())?;
        }
        rows.finish().map_err(|TooManyRows| too_large())
    }

    /// The bytes of the table file; see [`unikprof_proto::caller_table`].
    pub fn to_file(&self) -> Result<Vec<u8>, CompileError> {
        let no_id = || CompileError::NoBuildId { path: self.path.clone() };
        let id = self.build_id.as_ref().ok_or_else(no_id)?;
        let rows = self.rows()?;
        let head = file_head(self.processor.machine(), id.as_bytes(), &rows).ok_or_else(no_id)?;
        let mut file = Vec::with_capacity(head.len() + rows.len() * 8);
        file.extend(head);
        file.extend(rows.iter().flat_map(|row| row.to_bytes()));
        Ok(file)
    }

    /// Adds the rules of a mapping of this image, whose first address has this code.
    pub(super) fn place(
        &self,
        mapping: &Mapping,
        code_base: u32,
        rows: &mut RowBuilder,
    ) -> Result<(), TooManyRows> {
        for (linked, at) in self.linked(mapping) {
            let code = u64::from(code_base).saturating_add(at);
            rows.add(&self.stretches, linked, code)?;
        }
        Ok(())
    }

    /// The codes of each function in a mapping of this image, whose first address has this code,
    /// ascending.
    pub(super) fn functions(&self, mapping: &Mapping, code_base: u32) -> Vec<Range<u32>> {
        let mut found = Vec::new();
        for (linked, at) in self.linked(mapping) {
            let base = u64::from(code_base).saturating_add(at);
            let code = |address: u64| {
                let code = base.saturating_add(address - linked.start);
                u32::try_from(code).unwrap_or(u32::MAX)
            };
            let first = self.functions.partition_point(|it| *it < linked.start);
            let inside = self.functions[first..].iter().copied();
            let starts: Vec<u64> = inside.take_while(|it| *it < linked.end).collect();
            let ends = starts.iter().skip(1).copied().chain([linked.end]);
            let ranges = starts.iter().zip(ends);
            found.extend(ranges.map(|(start, end)| code(*start)..code(end)));
        }
        found
    }

    /// Which addresses the linker gave to the code in a mapping, and how far from the mapping's
    /// start each lies; as [`Image::link_address`] has it.
    fn linked(&self, mapping: &Mapping) -> Vec<(Range<u64>, u64)> {
        let length = mapping.end.saturating_sub(mapping.start);
        if !self.position_independent {
            return vec![(mapping.start..mapping.end, 0)];
        }
        let mut found: Vec<(Range<u64>, u64)> = self
            .segments
            .iter()
            .filter_map(|segment| {
                let start = segment.file_offset.max(mapping.file_offset);
                let end = (segment.file_offset + segment.size)
                    .min(mapping.file_offset.saturating_add(length));
                let address = |offset| segment.address + (offset - segment.file_offset);
                (start < end).then(|| (address(start)..address(end), start - mapping.file_offset))
            })
            .collect();
        found.sort_by_key(|(_, at)| *at);
        if found.is_empty() {
            found.push((self.base..self.base.saturating_add(length), 0));
        }
        found
    }
}

fn executable_segments(file: &ElfFile<'_>, length: u64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = file
        .segments()
        .filter(|segment| match segment.flags() {
            SegmentFlags::Elf { p_flags, .. } => p_flags.0 & elf::PF_X.0 != 0,
            _ => false,
        })
        .filter_map(|segment| {
            let (file_offset, size) = segment.file_range();
            let size = size.min(length.checked_sub(file_offset)?).min(u64::MAX - segment.address());
            (size > 0).then_some(Segment { address: segment.address(), file_offset, size })
        })
        .collect();
    segments.sort_by_key(|segment| segment.address);
    // Of segments that overlap, the first has the addresses.
    let mut free = 0;
    segments.retain(|segment| {
        let apart = segment.address >= free;
        free = free.max(segment.end());
        apart
    });
    segments
}

/// What was found in a file. If it has changed, that is why something is missing or damaged.
fn unless_changed<T>(file: &Image, found: Result<T, CompileError>) -> Result<T, CompileError> {
    match file.bytes().has_changed() {
        true => Err(CompileError::Changed { path: file.path().to_owned() }),
        false => found,
    }
}

/// What a file's sections say; `None` where it has none.
fn call_frames(
    path: &Path,
    file: &ElfFile<'_>,
    processor: Processor,
    segments: &[Segment],
) -> Result<Option<SectionCalls>, CompileError> {
    let bases = bases(file);
    let damaged = |section, problem| CompileError::section(path, section, problem);
    let mut found: Option<SectionCalls> = None;
    if let Some(data) = section_data(path, file, EH_FRAME)? {
        let mut section = eh_frame(&data);
        section.set_vendor(processor.vendor());
        let calls = section::read(&section, data.len(), &bases, processor, segments, false);
        found = Some(calls.map_err(|problem| damaged(EH_FRAME, problem))?);
    }
    const DEBUG_FRAME: &str = ".debug_frame";
    if let Some(data) = section_data(path, file, DEBUG_FRAME)? {
        let mut section = DebugFrame::new(&data, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(processor.vendor());
        let calls = section::read(&section, data.len(), &bases, processor, segments, true);
        let calls = calls.map_err(|problem| damaged(DEBUG_FRAME, problem))?;
        found = Some(match found {
            None => calls,
            Some(mut eh_frame) => {
                fill_gaps(&mut eh_frame.stretches, &calls.stretches);
                eh_frame.functions.extend(calls.functions);
                eh_frame.functions.sort_unstable();
                eh_frame.functions.dedup();
                eh_frame.damaged += calls.damaged;
                eh_frame.contradicted += calls.contradicted;
                eh_frame
            }
        });
    }
    Ok(found)
}

const EH_FRAME: &str = ".eh_frame";

fn eh_frame(data: &[u8]) -> EhFrame<EndianSlice<'_, LittleEndian>> {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    section
}

fn bases(file: &ElfFile<'_>) -> BaseAddresses {
    let address = |name| file.section_by_name(name).map_or(0, |s| s.address());
    BaseAddresses::default()
        .set_eh_frame(address(EH_FRAME))
        .set_eh_frame_hdr(address(".eh_frame_hdr"))
        .set_text(address(".text"))
        .set_got(address(".got"))
}

/// The addresses of the functions that an image's `.eh_frame` describes, sorted. Functions at
/// address 0 are those that the linker left out.
pub(crate) fn functions_described(file: &ElfFile<'_>) -> Vec<Range<u64>> {
    let data = file
        .section_by_name(EH_FRAME)
        .and_then(|section| section_bytes(&section, &Cell::new(MOST_DECOMPRESSED)).ok());
    let data = data.unwrap_or_default();
    let (section, bases) = (eh_frame(&data), bases(file));
    let mut shared = HashMap::new();
    let mut found = Vec::new();
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|section, bases, offset| match shared.entry(offset.0) {
            Entry::Occupied(known) => Ok(CommonInformationEntry::clone(known.get())),
            Entry::Vacant(new) => Ok(new.insert(section.cie_from_offset(bases, offset)?).clone()),
        });
        if let Ok(function) = parsed
            && function.initial_address() != 0
            && let Some(end) = function.initial_address().checked_add(function.len())
        {
            found.push(function.initial_address()..end);
        }
    }
    found.sort_unstable_by_key(|range| (range.start, range.end));
    found
}

/// The bytes of a section that is there and not empty.
fn section_data<'a>(
    path: &Path,
    file: &ElfFile<'a>,
    name: &'static str,
) -> Result<Option<Cow<'a, [u8]>>, CompileError> {
    let Some(section) = file.section_by_name(name) else {
        return Ok(None);
    };
    match section_bytes(&section, &Cell::new(MOST_DECOMPRESSED)) {
        Ok(data) if data.is_empty() => Ok(None),
        Ok(data) => Ok(Some(data)),
        Err(problem) => Err(CompileError::Elf { path: path.into(), problem }),
    }
}

/// Marks the gaps between functions in which nothing runs, and what instructions tell by
/// themselves.
fn look_at_code(
    stretches: &mut Vec<RuleRange>,
    processor: Processor,
    segments: &[Segment],
    bytes: &ImageBytes,
) {
    let code = |start: u64, end: u64| {
        let at = segments.partition_point(|s| s.address <= start).checked_sub(1)?;
        let segment = segments.get(at).filter(|s| end <= s.end())?;
        let from = segment.file_offset + (start - segment.address);
        let until = from.checked_add(end - start)?;
        bytes.get(from..until)
    };
    for stretch in stretches.iter_mut() {
        if let Known::Rule(rule) = stretch.known
            && stretch.end - stretch.start <= MAX_TOLD
            && let Some(from) = stretch.start.checked_sub(1)
            && let Some([before, instructions @ ..]) = code(from, stretch.end)
            && tell(processor, rule, *before, instructions)
        {
            stretch.known = Known::Told(rule);
        }
    }
    let gaps: Vec<RuleRange> = stretches
        .windows(2)
        .map(|pair| (pair[0].end, pair[1].start))
        .filter(|(start, end)| start < end && end - start <= MAX_PADDING)
        .filter(|(start, end)| code(*start, *end).is_some_and(|code| is_padding(processor, code)))
        .map(|(start, end)| RuleRange { start, end, known: Known::Padding })
        .collect();
    if !gaps.is_empty() {
        stretches.extend(gaps);
        // They lie between, and do not overlap.
        resolve_overlaps(stretches);
    }
}
