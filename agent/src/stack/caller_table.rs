//! The caller table, in which a tick looks up how to find a function's caller.
//!
//! A table has up to [`MAX_PARTS`] parts, each with the rows of one range of codes, sorted, in a
//! block that is given once. An index over equally sized sections of the range (*stretches*) leads
//! to an address's few rows, so a lookup takes two reads and a short binary search, whose length
//! the number of rows limits whatever they contain. Ranges may overlap: a client without room for
//! all rows sends those of some functions first, and those of functions between them later. If
//! several parts have a rule for a code, the first one applies.
//!
//! Parts with an index below `count` are published. Ticks load `count` with acquire order and read
//! only those. The poll writes the rows, the index and the fields of the part at `count`, which no
//! tick reads, and then stores `count + 1` with release order: a tick that sees the new count sees
//! the whole part. A published part is never written again during a recording; `forget` may be
//! called only when no tick reads, and the next part begins only when no snapshot does.
//!
//! Rows are not trusted: a wrong one only yields a wrong caller.
//!
//! Why: docs/design/decisions.md#parts-of-a-table,
//! docs/design/decisions.md#an-index-over-stretches-of-code.

use core::fmt;
use core::mem::MaybeUninit;

use unikprof_proto::caller_table::{
    MAX_PARTS, Part, Row, Rule, TableFile, TableFileError, checksum, machine, table_checksum,
};

use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, prefetch};
use crate::stack::architecture::{Architecture as _, Native};
use crate::stack::code_map::{CodeMap, Mapping};

/// The rows of room for each entry of the index.
const ROWS_PER_ENTRY: usize = 2;

/// The additional entries of each part: one for the end, one for the last stretch.
const SPARE_ENTRIES: usize = 2;

/// The bytes of an index entry and its rows.
const ENTRY_AND_ROWS: usize = size_of::<AtomicU32>() + ROWS_PER_ENTRY * size_of::<AtomicU64>();

/// The bytes of a block for a table of `rows` rows, at any alignment.
pub const fn caller_table_bytes(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_ENTRY).saturating_mul(ENTRY_AND_ROWS).saturating_add(
        MAX_PARTS * SPARE_ENTRIES * size_of::<AtomicU32>() + align_of::<AtomicU64>(),
    )
}

/// A caller table in memory.
#[derive(Debug)]
pub struct CallerTable<'m> {
    /// The number of published parts.
    count: AtomicU32,
    parts: [PartCells; MAX_PARTS],
    /// The code in the upper half, the rule in the lower. The rows of the parts follow one another.
    rows: &'m [AtomicU64],
    /// For each stretch of a part: the index in the part of the first row that begins in the
    /// stretch or later. The entries of the parts follow one another.
    index: &'m [AtomicU32],
    /// The code after the last mapping.
    end: u32,
}

/// A part's fields, 32 bytes, so that a tick reads the usual single part from one cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
struct PartCells {
    first: AtomicU32,
    /// The number of codes that it covers, in mappings only.
    length: AtomicU32,
    /// The binary logarithm of the number of codes in a stretch.
    shift: AtomicU32,
    /// The position of its first entry in the index.
    index: AtomicU32,
    /// The position of its first row.
    rows: AtomicU32,
    row_count: AtomicU32,
    end: AtomicU32,
    checksum: AtomicU32,
}

/// A published part, for lookups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoundPart<'m> {
    first: u32,
    length: u32,
    shift: u32,
    rows: &'m [AtomicU64],
    index: &'m [AtomicU32],
}

impl FoundPart<'_> {
    /// The rule for finding the caller of `code`; `None` if the part does not cover it. *Upcall.*
    #[inline]
    pub(crate) fn rule(&self, code: u32) -> Option<Rule> {
        let offset = code.wrapping_sub(self.first);
        if offset >= self.length {
            return None;
        }
        let stretch = (offset >> (self.shift & 31)) as usize;
        let entry = |at: usize| Some(self.index.get(at)?.load(Ordering::Relaxed) as usize);
        let (Some(first), Some(last)) = (entry(stretch), entry(stretch + 1)) else {
            return Some(Rule::UNKNOWN);
        };
        let rows = self.rows.get(first..last).unwrap_or_default();
        let begun = rows.partition_point(|row| (row.load(Ordering::Relaxed) >> 32) as u32 <= code);
        // The row that applies may begin in an earlier stretch.
        let row = (first + begun).checked_sub(1).and_then(|at| self.rows.get(at));
        Some(row.map_or(Rule::UNKNOWN, |row| Rule(row.load(Ordering::Relaxed) as u32)))
    }
}

impl PartCells {
    fn part(&self) -> Part {
        let get = |cell: &AtomicU32| cell.load(Ordering::Relaxed);
        Part {
            first: get(&self.first),
            end: get(&self.end),
            rows: get(&self.row_count),
            checksum: get(&self.checksum),
        }
    }
}

/// Why a table that was linked into the image cannot be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LinkedTableError {
    /// It is not a table, or it is damaged.
    File(TableFileError),
    /// Its rules are for another architecture, whose
    /// [number](unikprof_proto::caller_table::machine) in ELF files this is.
    OtherArchitecture(u16),
    /// It was made from another image: its build-id is that of no mapping.
    OtherImage,
    /// The block is too small for it.
    TooLarge {
        /// The rows of the table.
        rows: u32,
        /// The rows that there is room for.
        room: u32,
    },
}

impl fmt::Display for LinkedTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::OtherArchitecture(found) => {
                let expected = machine::name(Native::MACHINE).unwrap_or_default();
                f.write_str("the caller table is for ")?;
                match machine::name(*found) {
                    Some(name) => f.write_str(name)?,
                    None => write!(f, "an unknown architecture (ELF machine {found})")?,
                }
                write!(
                    f,
                    " and this guest runs on {expected}; make it again from the image that is \
                     linked"
                )
            }
            Self::OtherImage => f.write_str(
                "the caller table was made from another image: no mapping has its build-id; make \
                 it \
                 again from the image that is linked",
            ),
            Self::TooLarge { rows, room } => write!(
                f,
                "the caller table has {rows} rows, and the block room for {room}; give it {} bytes",
                caller_table_bytes(*rows as usize)
            ),
        }
    }
}

impl core::error::Error for LinkedTableError {}

impl<'m> CallerTable<'m> {
    /// A table of one part with `rows` for the codes of `code`, in a block of its own; `None` if
    /// the block is too small, or a row's code is not above that of the row before.
    pub fn from_rows(
        block: &'m mut [MaybeUninit<u8>],
        code: &CodeMap,
        rows: &[Row],
    ) -> Option<Self> {
        let table = Self::in_block(block, code.end())?;
        if !rows.is_sorted_by(|before, row| before.code < row.code) {
            return None;
        }
        let mut writing = table.begin(0, u32::MAX, u32::try_from(rows.len()).ok()?)?;
        let all = rows.iter().all(|row| writing.push(*row));
        all.then(|| writing.finish())?;
        Some(table)
    }

    /// An empty table in `block`, for codes below `end`; `None` if the block has no room for a row.
    pub(crate) fn in_block(block: &'m mut [MaybeUninit<u8>], end: u32) -> Option<Self> {
        let for_rows = block.len().checked_sub(caller_table_bytes(0))?;
        let rows = for_rows / ENTRY_AND_ROWS * ROWS_PER_ENTRY;
        let mut rest = block;
        let rows = take(&mut rest, rows)?;
        let entries = rows.len() / ROWS_PER_ENTRY + MAX_PARTS * SPARE_ENTRIES;
        let index = take(&mut rest, entries)?;
        (!rows.is_empty()).then(|| Self::new(rows, index, end))
    }

    /// An empty table over `rows` and `index`, for codes below `end`.
    pub(crate) fn new(rows: &'m [AtomicU64], index: &'m [AtomicU32], end: u32) -> Self {
        Self { count: AtomicU32::new(0), parts: Default::default(), rows, index, end }
    }

    /// The number of rows that there is room for.
    pub fn room(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// The [checksum](table_checksum) of the published parts; `None` if there are none.
    pub fn checksum(&self) -> Option<u32> {
        let next = |before: Option<Part>| {
            let parts = self.published().iter().map(PartCells::part);
            let later = parts.filter(|part| before.is_none_or(|before| *part > before));
            later.min()
        };
        table_checksum(core::iter::successors(next(None), |part| next(Some(*part))))
    }

    /// The published parts.
    #[inline]
    fn published(&self) -> &[PartCells] {
        let count = self.count.load(Ordering::Acquire) as usize;
        self.parts.get(..count).unwrap_or_default()
    }

    /// The rule for finding the caller of `code`. *Upcall.*
    #[inline]
    pub fn rule(&self, code: u32) -> Rule {
        for part in self.covering(code) {
            match self.found(part).and_then(|part| part.rule(code)) {
                None | Some(Rule::UNKNOWN) => {}
                Some(rule) => return rule,
            }
        }
        Rule::UNKNOWN
    }

    /// The first part that has a rule for `code`. A walk that looks every frame up keeps it,
    /// because the next code is usually in the same part. *Upcall.*
    #[inline]
    pub(crate) fn find(&self, code: u32) -> Option<FoundPart<'m>> {
        let parts = self.covering(code).filter_map(|part| self.found(part));
        let mut knowing = parts.filter(|part| part.rule(code) != Some(Rule::UNKNOWN));
        knowing.next()
    }

    /// The parts whose range contains `code`.
    #[inline]
    fn covering(&self, code: u32) -> impl Iterator<Item = &PartCells> {
        self.published().iter().filter(move |part| {
            let offset = code.wrapping_sub(part.first.load(Ordering::Relaxed));
            offset < part.length.load(Ordering::Relaxed)
        })
    }

    #[inline]
    fn found(&self, part: &PartCells) -> Option<FoundPart<'m>> {
        let get = |cell: &AtomicU32| cell.load(Ordering::Relaxed) as usize;
        let (rows, count) = (get(&part.rows), get(&part.row_count));
        let index = get(&part.index);
        let entries = count / ROWS_PER_ENTRY + SPARE_ENTRIES;
        Some(FoundPart {
            first: part.first.load(Ordering::Relaxed),
            length: part.length.load(Ordering::Relaxed),
            shift: part.shift.load(Ordering::Relaxed),
            rows: self.rows.get(rows..rows + count)?,
            index: self.index.get(index..index + entries)?,
        })
    }

    /// The position of the index entry for the stretch at this offset from the first code of
    /// `part`.
    #[inline]
    fn entry_of(&self, part: &PartCells, offset: u32) -> usize {
        let stretch = offset >> (part.shift.load(Ordering::Relaxed) & 31);
        part.index.load(Ordering::Relaxed) as usize + stretch as usize
    }

    /// Prefetches the index entry that a lookup of `address` reads first, if the address is in the
    /// guest's first mapping and the table's first part. *Upcall.*
    #[inline]
    pub(crate) fn prefetch(&self, code: &CodeMap, address: u64) {
        let (Some(part), Some(code)) = (self.published().first(), code.first().code(address))
        else {
            return;
        };
        let offset = code.wrapping_sub(part.first.load(Ordering::Relaxed));
        if let Some(entry) = self.index.get(self.entry_of(part, offset)) {
            prefetch(entry);
        }
    }

    /// Whether this part is published.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.published().iter().any(|cells| cells.part() == part)
    }

    /// Whether a published part covers any code of `first..end`.
    pub(crate) fn overlaps(&self, first: u32, end: u32) -> bool {
        let mut parts = self.published().iter().map(PartCells::part);
        parts.any(|part| part.first < end && first < part.end)
    }

    /// Removes all parts. No tick may read the table; a snapshot that has begun before may, until it
    /// ends.
    pub(crate) fn forget(&self) {
        self.count.store(0, Ordering::Release);
    }

    /// Begins to write a part of `rows` rows for the codes `first..end`; `None` if there is no room
    /// besides the published parts. Discards any other unfinished part.
    pub(crate) fn begin(&self, first: u32, end: u32, rows: u32) -> Option<Writing<'_, 'm>> {
        let published = self.published();
        let cells = self.parts.get(published.len())?;
        let (rows_before, entries_before) = published.iter().fold((0, 0), |(rows, entries), it| {
            let count = it.row_count.load(Ordering::Relaxed);
            (rows + count, entries + entries_of(count))
        });
        if rows > self.room().saturating_sub(rows_before) {
            return None;
        }
        let length = end.min(self.end).saturating_sub(first);
        let stretches = u64::from(entries_of(rows)) - SPARE_ENTRIES as u64;
        let last = u64::from(length.saturating_sub(1));
        let shift = (0..u32::BITS - 1).find(|shift| last >> shift < stretches.max(1));
        let shift = shift.unwrap_or(u32::BITS - 1);
        for (cell, value) in [
            (&cells.first, first),
            (&cells.length, length),
            (&cells.shift, shift),
            (&cells.index, entries_before),
            (&cells.rows, rows_before),
            (&cells.row_count, rows),
            (&cells.end, end),
            (&cells.checksum, 0),
        ] {
            cell.store(value, Ordering::Relaxed);
        }
        Some(Writing { table: self, part: cells, progress: Progress::default() })
    }

    /// Continues the part that was begun last; `None` if all parts are in use.
    pub(crate) fn go_on(&self, progress: Progress) -> Option<Writing<'_, 'm>> {
        Some(Writing { table: self, part: self.parts.get(self.published().len())?, progress })
    }

    /// Installs a table file for the `mappings` of the image it was made from, in place of all
    /// parts. Returns the number of its rows.
    #[inline(never)]
    pub(crate) fn install_file(
        &self,
        file: &[u8],
        mappings: &[Mapping<'_>],
        code: &CodeMap,
    ) -> Result<u32, LinkedTableError> {
        let file = TableFile::parse(file).map_err(LinkedTableError::File)?;
        if file.machine() != Native::MACHINE {
            return Err(LinkedTableError::OtherArchitecture(file.machine()));
        }
        let own = |mapping: &Mapping<'_>| mapping.build_id == file.build_id();
        if !mappings.iter().any(own) {
            return Err(LinkedTableError::OtherImage);
        }
        let ends = mappings.iter().enumerate().filter(|(_, it)| own(it));
        let ends = ends.filter_map(|(index, it)| {
            let first = code.code_base(index)?;
            Some((first, first.wrapping_add(it.end.saturating_sub(it.start) as u32)))
        });
        let (first, end) =
            ends.fold((u32::MAX, 0), |(first, end), it| (first.min(it.0), end.max(it.1)));
        // The rows are counted before anything is written.
        let mut rows = 0;
        translate(&file, mappings, code, |_| rows += 1);
        let room = self.room();
        if rows > room {
            return Err(LinkedTableError::TooLarge { rows, room });
        }
        self.forget();
        let too_large = LinkedTableError::TooLarge { rows, room };
        let mut writing = self.begin(first, end, rows).ok_or(too_large)?;
        translate(&file, mappings, code, |row| _ = writing.push(row));
        writing.finish();
        Ok(rows)
    }
}

/// The number of index entries of a part with `rows` rows.
fn entries_of(rows: u32) -> u32 {
    rows / ROWS_PER_ENTRY as u32 + SPARE_ENTRIES as u32
}

/// Calls `visit` with the rows of `file`, keyed by frame code. After each mapping the rule is
/// unknown.
///
/// A row that repeats the rule before it is omitted, as clients do, so that the same image always
/// gives the same table.
fn translate(
    file: &TableFile<'_>,
    mappings: &[Mapping<'_>],
    code: &CodeMap,
    mut visit: impl FnMut(Row),
) {
    let mut last: Option<Row> = None;
    let mut in_force = Rule::UNKNOWN;
    let mut settle = |row: Row| {
        if row.rule != in_force {
            in_force = row.rule;
            visit(row);
        }
    };
    let mut emit = |row: Row| {
        // A mapping may begin where the previous one ends: of two rows at one code, the later
        // applies.
        if let Some(before) = last.replace(row)
            && before.code != row.code
        {
            settle(before);
        }
    };
    for (index, mapping) in mappings.iter().enumerate() {
        let Some(base) = code.code_base(index) else {
            continue;
        };
        if mapping.build_id != file.build_id() {
            continue;
        }
        let length = mapping.end.saturating_sub(mapping.start);
        let mut at_start = Rule::UNKNOWN;
        let mut began = false;
        for row in file.rows() {
            let Some(offset) = u64::from(row.code).checked_sub(mapping.file_offset) else {
                at_start = row.rule;
                continue;
            };
            if offset >= length {
                break;
            }
            if !began && offset > 0 {
                emit(Row { code: base, rule: at_start });
            }
            began = true;
            emit(Row { code: base.wrapping_add(offset as u32), rule: row.rule });
        }
        if !began {
            emit(Row { code: base, rule: at_start });
        }
        emit(Row { code: base.wrapping_add(length as u32), rule: Rule::UNKNOWN });
    }
    if let Some(row) = last {
        settle(row);
    }
}

/// The progress of writing a part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    rows: u32,
    /// The number of index entries written.
    entries: u32,
    code: u32,
    checksum: u32,
}

impl Progress {
    /// The number of rows written.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// The code of the last row; 0 if there is none.
    pub(crate) fn code(&self) -> u32 {
        self.code
    }

    /// The checksum of the rows written.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum
    }
}

/// A part being written.
#[derive(Debug)]
pub(crate) struct Writing<'t, 'm> {
    table: &'t CallerTable<'m>,
    part: &'t PartCells,
    progress: Progress,
}

impl Writing<'_, '_> {
    /// Adds a row, whose code must be above that of the last one; `false` if the part has all its
    /// rows or does not contain the code.
    pub(crate) fn push(&mut self, row: Row) -> bool {
        let Part { first, end, rows, .. } = self.part.part();
        let progress = &self.progress;
        let at = self.part.rows.load(Ordering::Relaxed) + progress.rows;
        let cell = self.table.rows.get(at as usize);
        let inside = (first..=end).contains(&row.code) && progress.rows < rows;
        let Some(cell) = cell.filter(|_| inside) else {
            return false;
        };
        let word = u64::from(row.code) << 32 | u64::from(row.rule.0);
        cell.store(word, Ordering::Relaxed);
        let stretch = (row.code - first) >> self.part.shift.load(Ordering::Relaxed);
        self.lead_to(stretch.saturating_add(1));
        self.progress.rows += 1;
        self.progress.code = row.code;
        self.progress.checksum = checksum(self.progress.checksum, row);
        true
    }

    /// The progress, to [continue](CallerTable::go_on) later.
    pub(crate) fn pause(self) -> Progress {
        self.progress
    }

    /// Publishes the part, which must have all its rows.
    pub(crate) fn finish(mut self) {
        self.lead_to(u32::MAX);
        let checksum = self.progress.checksum;
        self.part.checksum.store(checksum, Ordering::Relaxed);
        let count = self.table.published().len() as u32;
        self.table.count.store(count + 1, Ordering::Release);
    }

    /// Makes the unwritten index entries below `entries` lead to the next row.
    fn lead_to(&mut self, entries: u32) {
        let Self { table, part, progress } = self;
        let end = entries.min(entries_of(part.row_count.load(Ordering::Relaxed)));
        let first = part.index.load(Ordering::Relaxed);
        let written = (first + progress.entries) as usize..(first + end) as usize;
        for entry in table.index.get(written).unwrap_or_default() {
            entry.store(progress.rows, Ordering::Relaxed);
        }
        progress.entries = progress.entries.max(end);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::string::ToString as _;
    use std::vec;
    use std::vec::Vec;

    use unikprof_proto::caller_table::file_head;

    use super::*;

    fn mapping(start: u64, length: u64, file_offset: u64, id: u8) -> Mapping<'static> {
        let ids: &'static [[u8; 20]; 3] = &[[0; 20], [1; 20], [2; 20]];
        Mapping {
            start,
            end: start + length,
            file_offset,
            build_id: &ids[usize::from(id)],
            path: "",
        }
    }

    fn rows(codes: impl IntoIterator<Item = u32>) -> Vec<Row> {
        let rule = |code: u32| Rule(code.wrapping_mul(7) << 2 | 2);
        let row = |code| Row { code, rule: rule(code) };
        codes.into_iter().map(row).collect()
    }

    /// The expected rule, by linear search.
    fn expected(rows: &[Row], code: u32) -> Rule {
        let last = rows.iter().rev().find(|row| row.code <= code);
        last.map_or(Rule::UNKNOWN, |row| row.rule)
    }

    /// However the rows are distributed over the stretches, each code has the rule of the last row
    /// that begins at or before it.
    #[test]
    fn every_code_has_its_rule() {
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        let spreads: [Vec<Row>; 6] = [
            rows([]),
            rows([16]),
            rows((0..1000).map(|n| 16 + n)),
            rows((0..1000).map(|n| 17 + n * 65)),
            rows((0..500).chain(60_000..60_500).map(|n| 16 + n)),
            rows([20, 0x1_000f, 0x1_0010]),
        ];
        for rows in spreads {
            let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(rows.len().max(2))];
            let table = CallerTable::from_rows(&mut block, &code, &rows).unwrap();
            for code in 0..0x1_0010 {
                assert_eq!(table.rule(code), expected(&rows, code), "{code:#x}");
            }
            for beyond in [0x1_0010, 0x10_0000, u32::MAX] {
                let rule = table.rule(beyond);
                let known = [Rule::UNKNOWN, expected(&rows, beyond)];
                assert!(known.contains(&rule), "{beyond:#x}: {rule:?}");
            }
        }
    }

    #[test]
    fn a_block_holds_what_it_was_said_to_hold() {
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        for count in [1, 2, 3, 64, 1001] {
            let rows = rows((0..count as u32).map(|n| 16 + n));
            for misaligned in 0..8 {
                let mut block =
                    vec![MaybeUninit::uninit(); caller_table_bytes(count + 1) + misaligned];
                let table = CallerTable::from_rows(&mut block[misaligned..], &code, &rows);
                assert!(table.is_some(), "{count} rows, {misaligned} bytes off");
            }
        }
        let mut small = [MaybeUninit::uninit(); 20];
        assert!(CallerTable::from_rows(&mut small, &code, &rows([16, 17])).is_none());
        let mut block = vec![MaybeUninit::uninit(); 4096];
        let unsorted = [rows([17]), rows([16])].concat();
        assert!(CallerTable::from_rows(&mut block, &code, &unsorted).is_none());
    }

    /// Each part has the rules of its range, wherever its rows are in the block.
    #[test]
    fn parts_are_added_in_any_order() {
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(600)];
        let table = CallerTable::in_block(&mut block, code.end()).unwrap();
        let ranges = [(0x8000, 0x9000), (16, 0x100), (0x100, 0x8000)];
        let mut expected_in: Vec<((u32, u32), Vec<Row>)> = Vec::new();
        for (index, (first, end)) in ranges.into_iter().enumerate() {
            let step = (end - first) / 150 + 1;
            let rows = rows((first..=end).step_by(step as usize).skip(index));
            let mut writing = table.begin(first, end, rows.len() as u32).unwrap();
            assert!(rows.iter().all(|row| writing.push(*row)));
            assert!(!writing.push(Row { code: end, ..rows[0] }), "one too many");
            // An unfinished part is not visible, even if it is written in several steps.
            let paused = writing.pause();
            assert_eq!(table.rule(end - 1), Rule::UNKNOWN);
            table.go_on(paused).unwrap().finish();
            expected_in.push(((first, end), rows));
            for ((first, end), rows) in &expected_in {
                for code in *first..*end {
                    assert_eq!(table.rule(code), expected(rows, code), "{code:#x}");
                }
            }
            assert_eq!(table.rule(0x9000), Rule::UNKNOWN);
            assert!(table.overlaps(end - 1, u32::MAX) && !table.overlaps(0x9000, u32::MAX));
        }
        assert!(table.begin(0x9000, 0xa000, 600).is_none(), "no room");
        let mut writing = table.begin(0x9000, 0xa000, 2).unwrap();
        for outside in [0x8fff, 0xa001] {
            let row = Row { code: outside, rule: Rule::ENTRY };
            assert!(!writing.push(row));
        }
        table.forget();
        assert_eq!((table.rule(0x8000), table.checksum()), (Rule::UNKNOWN, None));
    }

    /// A part with the same range as another one fills that one's gaps.
    #[test]
    fn where_parts_overlap_the_first_that_has_a_rule_counts() {
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        let function = |first: u32, rule| {
            let end = first + 0x10;
            [Row { code: first, rule }, Row { code: end, rule: Rule::UNKNOWN }]
        };
        let first = [function(16, Rule::ENTRY), function(0x100, Rule::ENTRY)].concat();
        let second =
            [function(32, Rule::FRAME_RECORD), function(0x108, Rule::FRAME_RECORD)].concat();
        let table_of = |parts: [&[Row]; 2]| {
            let block = vec![MaybeUninit::uninit(); caller_table_bytes(8)].leak();
            let table = CallerTable::in_block(block, code.end()).unwrap();
            for rows in parts {
                let mut writing = table.begin(16, 0x200, rows.len() as u32).unwrap();
                assert!(rows.iter().all(|row| writing.push(*row)));
                writing.finish();
            }
            table
        };
        let table = table_of([&first, &second]);
        for (code, rule) in [
            (16, Rule::ENTRY),
            (32, Rule::FRAME_RECORD),
            (48, Rule::UNKNOWN),
            (0x10f, Rule::ENTRY),
            (0x110, Rule::FRAME_RECORD),
            (0x118, Rule::UNKNOWN),
        ] {
            assert_eq!(table.rule(code), rule, "{code:#x}");
        }
        let alone = table_of([&first, &[]]);
        assert_ne!(table.checksum(), alone.checksum());
        assert_eq!(table.checksum(), table_of([&second, &first]).checksum());
    }

    #[test]
    fn there_are_so_many_parts_and_no_more() {
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(2 * MAX_PARTS)];
        let table = CallerTable::in_block(&mut block, code.end()).unwrap();
        for part in 0..MAX_PARTS as u32 {
            let first = 16 + part * 16;
            let mut writing = table.begin(first, first + 16, 1).unwrap();
            assert!(writing.push(rows([first + 4])[0]));
            writing.finish();
        }
        assert!(table.begin(0x1000, 0x1010, 1).is_none());
        let rules = (0..MAX_PARTS as u32).map(|part| table.rule(16 + part * 16 + 5));
        let first_rows = (0..MAX_PARTS as u32).map(|part| rows([16 + part * 16 + 4])[0].rule);
        assert!(rules.eq(first_rows));
        assert_eq!(table.rule(16 + 16 + 3), Rule::UNKNOWN, "before the part's first row");
    }

    /// A lookup while a part is published finds all of the part or nothing, and earlier parts are
    /// unchanged.
    #[test]
    fn a_part_is_published_as_a_whole() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let code = CodeMap::new(&[mapping(0x1000, 0x1_0000, 0, 0)]).unwrap();
        let (old, new) = (rows((16..1000).step_by(3)), rows((1000..3000).step_by(2)));
        for _ in 0..20 {
            let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(2000)];
            let table = CallerTable::in_block(&mut block, code.end()).unwrap();
            let add = |first, end, rows: &[Row]| {
                let mut writing = table.begin(first, end, rows.len() as u32).unwrap();
                assert!(rows.iter().all(|row| writing.push(*row)));
                writing.finish();
            };
            add(16, 1000, &old);
            let (is_reading, is_added) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut seen = false;
                    loop {
                        let last = is_added.load(Ordering::Acquire);
                        for code in (1000..3000).rev() {
                            match table.rule(code) {
                                Rule::UNKNOWN => assert!(!seen, "{code}"),
                                rule => {
                                    seen = true;
                                    assert_eq!(rule, expected_at(&new, code));
                                }
                            }
                        }
                        assert_eq!(table.rule(500), expected_at(&old, 500));
                        is_reading.store(true, Relaxed);
                        if last {
                            return assert!(seen);
                        }
                    }
                });
                while !is_reading.load(Relaxed) {
                    std::thread::yield_now();
                }
                add(1000, 3000, &new);
                is_added.store(true, Ordering::Release);
            });
        }
    }

    fn expected_at(rows: &[Row], code: u32) -> Rule {
        let after = rows.partition_point(|row| row.code <= code);
        rows[after - 1].rule
    }

    fn file(id: u8, rows: &[Row]) -> Vec<u8> {
        file_for(Native::MACHINE, id, rows)
    }

    fn file_for(machine: u16, id: u8, rows: &[Row]) -> Vec<u8> {
        let mut file = Vec::from(file_head(machine, &[id; 20], rows).unwrap());
        file.extend(rows.iter().flat_map(|row| row.to_bytes()));
        file
    }

    /// A linked table is keyed by file offset: it applies wherever its image was loaded, and only
    /// to its image.
    #[test]
    fn a_linked_table_is_moved_to_where_its_image_lies() {
        let mappings = [
            mapping(0x1000, 0x100, 0, 2),
            mapping(0x40_0000, 0x100, 0x1000, 1),
            mapping(0x50_0000, 0x100, 0, 2),
        ];
        let code = CodeMap::new(&mappings).unwrap();
        let mut block = vec![MaybeUninit::uninit(); 4096];
        let table = CallerTable::in_block(&mut block, code.end()).unwrap();
        let rows = rows([0xff0, 0x1010, 0x1020, 0x1100, 0x2000]);
        let installed = table.install_file(&file(1, &rows), &mappings, &code);
        assert_eq!(installed, Ok(4));
        assert!(table.checksum().is_some());
        let rule_at = |address| table.rule(code.code(address).unwrap());
        assert_eq!(rule_at(0x1050), Rule::UNKNOWN);
        assert_eq!(rule_at(0x40_0000), rows[0].rule, "it began before the mapping");
        assert_eq!(rule_at(0x40_0010), rows[1].rule);
        assert_eq!(rule_at(0x40_00ff), rows[2].rule);
        assert_eq!(rule_at(0x50_0000), Rule::UNKNOWN);
        // An image mapped twice, the second time directly after the first.
        let twice = [mapping(0x1000, 0x100, 0x1000, 1), mapping(0x1100, 0x100, 0x1000, 1)];
        let code = CodeMap::new(&twice).unwrap();
        assert_eq!(table.install_file(&file(1, &rows), &twice, &code), Ok(7));
        let rule_at = |address| table.rule(code.code(address).unwrap());
        for start in [0x1000, 0x1100] {
            assert_eq!(rule_at(start), rows[0].rule);
            assert_eq!(rule_at(start + 0x10), rows[1].rule);
        }
    }

    #[test]
    fn a_linked_table_that_does_not_fit_is_refused() {
        let mappings = [mapping(0x1000, 0x1000, 0, 1)];
        let code = CodeMap::new(&mappings).unwrap();
        let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(4)];
        let table = CallerTable::in_block(&mut block, code.end()).unwrap();
        let install = |file: &[u8]| table.install_file(file, &mappings, &code);
        let rows = rows((0..8).map(|n| n * 16));
        assert_eq!(install(&file(2, &rows)), Err(LinkedTableError::OtherImage));
        let another = match Native::MACHINE {
            machine::X86_64 => (machine::AARCH64, "is for aarch64 and this guest runs on x86_64"),
            _ => (machine::X86_64, "is for x86_64 and this guest runs on aarch64"),
        };
        let unknown = (8, "is for an unknown architecture (ELF machine 8)");
        for (other, says) in [another, unknown] {
            let error = install(&file_for(other, 1, &rows)).unwrap_err();
            assert_eq!(error, LinkedTableError::OtherArchitecture(other));
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(install(&file(1, &rows)), Err(LinkedTableError::TooLarge { rows: 9, room: 4 }));
        assert_eq!(
            install(&file(1, &rows)[1..]),
            Err(LinkedTableError::File(TableFileError::Magic))
        );
        assert_eq!(table.checksum(), None);
    }
}
