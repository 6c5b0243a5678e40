//! The caller table as the tick looks addresses up in it.
//!
//! Rows lie sorted in a block of their own, given once. An index over stretches of code of equal size
//! leads to the few rows of an address, so that a look-up takes two reads and a short search; whatever
//! the rows say, the search is bounded by their number's logarithm.
//!
//! A table is written while nothing is recorded, and read by ticks only while something is. Rows are
//! not believed: a wrong one costs a wrong caller.

use core::fmt;
use core::mem::MaybeUninit;

use unikprof_proto::caller_table::{Row, Rule, TableFile, TableFileError, checksum, machine};

use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::stack::architecture::MACHINE;
use crate::stack::code_map::{CodeMap, Mapping};

/// One entry of the index for as many rows of room.
const ROWS_PER_ENTRY: usize = 2;

/// Entries beside them: one for the end, one for the last stretch.
const SPARE_ENTRIES: usize = 2;

/// An entry of the index and the rows that come with it, in bytes.
const ENTRY_AND_ROWS: usize = size_of::<AtomicU32>() + ROWS_PER_ENTRY * size_of::<AtomicU64>();

/// The bytes of a block that holds a table of `rows` rows, wherever it is aligned.
pub const fn caller_table_bytes(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_ENTRY)
        .saturating_mul(ENTRY_AND_ROWS)
        .saturating_add(SPARE_ENTRIES * size_of::<AtomicU32>() + align_of::<AtomicU64>())
}

/// A caller table in memory.
#[derive(Debug)]
pub struct CallerTable<'m> {
    /// The code in the upper half, the rule in the lower.
    rows: &'m [AtomicU64],
    /// For each stretch of code the first row that begins in it or later.
    index: &'m [AtomicU32],
    /// A stretch has 2 to this many codes.
    shift: u32,
    checksum: AtomicU32,
    installed: AtomicU32,
}

/// Why a table that is linked into the image cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkedTableError {
    /// It is no table, or damaged.
    File(TableFileError),
    /// Its rules are for another architecture, this [number](unikprof_proto::caller_table::machine) in ELF files.
    OtherArchitecture(u16),
    /// It was made from another image: no mapping has its build-id.
    OtherImage,
    /// The block has not room for it.
    TooLarge {
        /// The rows of the table.
        rows: u32,
        /// The rows there is room for.
        room: u32,
    },
}

impl fmt::Display for LinkedTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::OtherArchitecture(found) => {
                let expected = machine::name(MACHINE).unwrap_or_default();
                f.write_str("the caller table is for ")?;
                match machine::name(*found) {
                    Some(name) => f.write_str(name)?,
                    None => write!(f, "an unknown architecture (ELF machine {found})")?,
                }
                write!(
                    f,
                    " and this guest runs on {expected}; make it again from the image that is linked"
                )
            }
            Self::OtherImage => f.write_str(
                "the caller table was made from another image: no mapping has its build-id; make it \
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
    /// A table of `rows` for the codes of `code`, in a block of its own; `None` where the block is too
    /// small, or a row's code is not above that of the row before.
    pub fn from_rows(
        block: &'m mut [MaybeUninit<u8>],
        code: &CodeMap,
        rows: &[Row],
    ) -> Option<Self> {
        let table = Self::in_block(block, code.end())?;
        let mut writing = table.begin();
        let sorted = rows.is_sorted_by(|before, row| before.code < row.code);
        let all = sorted && rows.iter().all(|row| writing.push(*row));
        all.then(|| writing.finish())?;
        Some(table)
    }

    /// An empty table over all of `block`, for codes below `end`; `None` if the block has no room for a row.
    pub(crate) fn in_block(block: &'m mut [MaybeUninit<u8>], end: u32) -> Option<Self> {
        let for_rows = block.len().checked_sub(caller_table_bytes(0))?;
        let rows = for_rows / ENTRY_AND_ROWS * ROWS_PER_ENTRY;
        let mut rest = block;
        let rows = take(&mut rest, rows)?;
        let index = take(&mut rest, rows.len() / ROWS_PER_ENTRY + SPARE_ENTRIES)?;
        (!rows.is_empty()).then(|| Self::new(rows, index, end))
    }

    /// An empty table over `rows` and `index`, for codes below `end`.
    pub(crate) fn new(rows: &'m [AtomicU64], index: &'m [AtomicU32], end: u32) -> Self {
        let stretches = index.len().saturating_sub(SPARE_ENTRIES).max(1) as u64;
        let shift = (0..u32::BITS)
            .find(|shift| u64::from(end) >> shift < stretches)
            .unwrap_or(u32::BITS - 1);
        Self {
            rows,
            index,
            shift,
            checksum: AtomicU32::new(0),
            installed: AtomicU32::new(0),
        }
    }

    /// How many rows there is room for.
    pub fn room(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// The checksum of the table that is installed; `None` where none is.
    pub fn checksum(&self) -> Option<u32> {
        let installed = self.installed.load(Ordering::Acquire) != 0;
        installed.then(|| self.checksum.load(Ordering::Relaxed))
    }

    /// How the caller of `code` is found. *Upcall.*
    #[inline]
    pub fn rule(&self, code: u32) -> Rule {
        let stretch = (code >> self.shift) as usize;
        let entry = |at: usize| Some(self.index.get(at)?.load(Ordering::Relaxed) as usize);
        let (Some(first), Some(last)) = (entry(stretch), entry(stretch + 1)) else {
            return Rule::UNKNOWN;
        };
        let rows = self.rows.get(first..last).unwrap_or_default();
        let begun = rows.partition_point(|row| (row.load(Ordering::Relaxed) >> 32) as u32 <= code);
        // The row in force may have begun in an earlier stretch.
        let row = (first + begun)
            .checked_sub(1)
            .and_then(|at| self.rows.get(at));
        row.map_or(
            Rule::UNKNOWN,
            |row| Rule(row.load(Ordering::Relaxed) as u32),
        )
    }

    /// Forgets the table and begins another; nothing may be recorded.
    pub(crate) fn begin(&self) -> Writing<'_, 'm> {
        self.installed.store(0, Ordering::Relaxed);
        Writing {
            table: self,
            progress: Progress::default(),
        }
    }

    /// Goes on with a table that was begun.
    pub(crate) fn go_on(&self, progress: Progress) -> Writing<'_, 'm> {
        Writing {
            table: self,
            progress,
        }
    }

    /// Installs a table file for the `mappings` of the image it was made from; answers its rows.
    pub(crate) fn install_file(
        &self,
        file: &[u8],
        mappings: &[Mapping<'_>],
        code: &CodeMap,
    ) -> Result<u32, LinkedTableError> {
        let file = TableFile::parse(file).map_err(LinkedTableError::File)?;
        if file.machine() != MACHINE {
            return Err(LinkedTableError::OtherArchitecture(file.machine()));
        }
        let own = |mapping: &&Mapping<'_>| mapping.build_id == file.build_id();
        if !mappings.iter().any(|mapping| own(&mapping)) {
            return Err(LinkedTableError::OtherImage);
        }
        // Before anything is written: how many there are.
        let mut rows = 0;
        translate(&file, mappings, code, |_| rows += 1);
        let room = self.room();
        if rows > room {
            return Err(LinkedTableError::TooLarge { rows, room });
        }
        let mut writing = self.begin();
        translate(&file, mappings, code, |row| _ = writing.push(row));
        writing.finish();
        Ok(rows)
    }
}

/// Hands the rows of `file`, keyed by frame code, to `visit`. Behind each mapping nothing is known.
///
/// A row that changes nothing is left out, as clients do: the same image gives the same table.
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
        // A mapping may begin where the one before ends: the row that came last holds.
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
                emit(Row {
                    code: base,
                    rule: at_start,
                });
            }
            began = true;
            emit(Row {
                code: base.wrapping_add(offset as u32),
                rule: row.rule,
            });
        }
        if !began {
            emit(Row {
                code: base,
                rule: at_start,
            });
        }
        emit(Row {
            code: base.wrapping_add(length as u32),
            rule: Rule::UNKNOWN,
        });
    }
    if let Some(row) = last {
        settle(row);
    }
}

/// How far a table is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    rows: u32,
    /// Entries of the index that are written.
    entries: u32,
    code: u32,
    checksum: u32,
}

impl Progress {
    /// How many rows are written.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// The code of the last row; 0 where there is none.
    pub(crate) fn code(&self) -> u32 {
        self.code
    }

    /// The checksum of the rows so far.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum
    }
}

/// A table being written.
#[derive(Debug)]
pub(crate) struct Writing<'t, 'm> {
    table: &'t CallerTable<'m>,
    progress: Progress,
}

impl Writing<'_, '_> {
    /// Adds a row, whose code must be above the last one's; `false` where there is no room.
    pub(crate) fn push(&mut self, row: Row) -> bool {
        let Self { table, progress } = self;
        let Some(cell) = table.rows.get(progress.rows as usize) else {
            return false;
        };
        let word = u64::from(row.code) << 32 | u64::from(row.rule.0);
        cell.store(word, Ordering::Relaxed);
        let stretch = row.code >> table.shift;
        table.lead_to(progress, stretch.saturating_add(1));
        progress.rows += 1;
        progress.code = row.code;
        progress.checksum = checksum(progress.checksum, row);
        true
    }

    /// Where to [go on](CallerTable::go_on).
    pub(crate) fn pause(self) -> Progress {
        self.progress
    }

    /// The table is whole.
    pub(crate) fn finish(mut self) {
        self.table.lead_to(&mut self.progress, u32::MAX);
        let Self { table, progress } = self;
        table.checksum.store(progress.checksum, Ordering::Relaxed);
        table.installed.store(1, Ordering::Release);
    }
}

impl CallerTable<'_> {
    /// Lets the entries of the index that are not yet written, up to `entries`, lead to the next row.
    fn lead_to(&self, progress: &mut Progress, entries: u32) {
        let end = (entries as usize).min(self.index.len());
        let written = self.index.get(progress.entries as usize..end);
        for entry in written.unwrap_or_default() {
            entry.store(progress.rows, Ordering::Relaxed);
        }
        progress.entries = progress.entries.max(end as u32);
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
        let row = |code| Row {
            code,
            rule: rule(code),
        };
        codes.into_iter().map(row).collect()
    }

    /// What the table should answer, found the slow way.
    fn expected(rows: &[Row], code: u32) -> Rule {
        let last = rows.iter().rev().find(|row| row.code <= code);
        last.map_or(Rule::UNKNOWN, |row| row.rule)
    }

    /// However the rows lie over the stretches of the index: each code has the rule of the last row
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

    fn file(id: u8, rows: &[Row]) -> Vec<u8> {
        file_for(MACHINE, id, rows)
    }

    fn file_for(machine: u16, id: u8, rows: &[Row]) -> Vec<u8> {
        let mut file = Vec::from(file_head(machine, &[id; 20], rows).unwrap());
        file.extend(rows.iter().flat_map(|row| row.to_bytes()));
        file
    }

    /// A linked table is keyed by file offset: it holds wherever its image was loaded, and for its
    /// image alone.
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
        assert_eq!(
            rule_at(0x40_0000),
            rows[0].rule,
            "it began before the mapping"
        );
        assert_eq!(rule_at(0x40_0010), rows[1].rule);
        assert_eq!(rule_at(0x40_00ff), rows[2].rule);
        assert_eq!(rule_at(0x50_0000), Rule::UNKNOWN);
        // An image mapped twice, the second time right behind the first.
        let twice = [
            mapping(0x1000, 0x100, 0x1000, 1),
            mapping(0x1100, 0x100, 0x1000, 1),
        ];
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
        for (other, says) in [
            (
                machine::AARCH64,
                "is for aarch64 and this guest runs on x86_64",
            ),
            (8, "is for an unknown architecture (ELF machine 8)"),
        ] {
            let error = install(&file_for(other, 1, &rows)).unwrap_err();
            assert_eq!(error, LinkedTableError::OtherArchitecture(other));
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(
            install(&file(1, &rows)),
            Err(LinkedTableError::TooLarge { rows: 9, room: 4 })
        );
        assert_eq!(
            install(&file(1, &rows)[1..]),
            Err(LinkedTableError::File(TableFileError::Magic))
        );
        assert_eq!(table.checksum(), None);
    }
}
