//! The caller table of a guest: compiled from its images' call frame information, for an agent to
//! look callers up in.
//!
//! A sample in a leaf function, a prologue or an epilogue has no frame of its own, and a walk along
//! frame pointers skips its caller. What the compiler wrote for exceptions and debuggers
//! (`.eh_frame`, `.debug_frame`) says where the return address is at each instruction;
//! [`ImageTable`] reduces that to the [rules](unikprof_proto::caller_table::Rule) that an agent
//! applies while it samples, and [`prepare`] places the rules of all of a guest's images where the
//! guest has its code.
//!
//! ```no_run
//! use unikprof_profile::caller_table::ImageTable;
//! use unikprof_profile::symbols::Image;
//!
//! let image = Image::open("guest.elf".as_ref())?;
//! let table = ImageTable::compile(&image, &[])?;
//! std::fs::write("guest.callers", table.to_file()?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Images are hostile here as everywhere: a damaged one gives an error, or a table without the
//! functions that make no sense.

#[cfg(test)]
mod compile_tests;
mod error;
mod guest_table;
mod image_table;
mod instructions;
mod of_frames;
mod partial;
mod processor;
mod rule;
mod section;
mod stretches;

use std::ops::Range;

use unikprof_proto::caller_table::{MAX_PARTS, Part, Row, Rule, checksum, table_checksum};

pub use error::{CallerTableError, CompileError, Note};
pub use guest_table::{Prepared, prepare};
pub use image_table::ImageTable;
pub(crate) use image_table::functions_described;
pub use of_frames::rules_of_frames;
pub use partial::{Interrupted, PartialTable, Reserve};

/// The memory that an agent needs for a table of so many rows, in bytes: ten for each of an even
/// number of rows, and a little beside them for the ends of the parts.
pub fn block_bytes(rows: usize) -> u64 {
    (rows as u64).div_ceil(2).saturating_mul(20).saturating_add(72)
}

/// A table for one agent: rows keyed by its frame codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerTable {
    rows: Vec<Row>,
    parts: Vec<TablePart>,
}

/// The rows of one range of codes, which an agent takes as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePart {
    /// Where it lies and how it is looked up.
    pub part: Part,
    /// In the order of their codes.
    pub rows: Vec<Row>,
}

impl CallerTable {
    /// Takes rows that are in order, and divides them among these ranges of codes, which are in
    /// order, too. An agent holds a part for each of the first ranges; the last takes what is left.
    fn new(rows: Vec<Row>, ranges: &[Range<u32>]) -> CallerTable {
        let mut joined: Vec<Range<u32>> = Vec::new();
        for range in ranges {
            let is_full = joined.len() == MAX_PARTS;
            match joined.last_mut() {
                Some(last) if is_full => last.end = range.end,
                _ => joined.push(range.clone()),
            }
        }
        let parts = joined.into_iter().map(|range| part_of(&rows, range));
        let parts = parts.filter(|part| !part.rows.is_empty()).collect();
        CallerTable { rows, parts }
    }

    /// The rows, their codes ascending.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rows that an agent needs room for: the ends of parts have rows of their own.
    fn rows_sent(&self) -> usize {
        self.parts.iter().map(|part| part.rows.len()).sum()
    }

    /// The parts, as they are sent.
    pub fn parts(&self) -> &[TablePart] {
        &self.parts
    }

    /// What the table is known by, where the agent holds no other part beside.
    pub fn checksum(&self) -> u32 {
        let parts = self.parts.iter().map(|part| part.part);
        table_checksum(parts).unwrap_or_default()
    }
}

/// The rows that hold in `range`, and one behind them that ends them.
fn part_of(rows: &[Row], range: Range<u32>) -> TablePart {
    let begun = rows.partition_point(|row| row.code <= range.start);
    let before = begun.checked_sub(1).map_or(Rule::UNKNOWN, |at| rows[at].rule);
    let first = Row { code: range.start, rule: before };
    let inside = rows[begun..].iter().take_while(|row| row.code < range.end);
    let mut part: Vec<Row> = std::iter::once(first)
        .filter(|row| row.rule != Rule::UNKNOWN)
        .chain(inside.copied())
        .collect();
    if part.last().is_some_and(|row| row.rule != Rule::UNKNOWN) {
        part.push(Row { code: range.end, rule: Rule::UNKNOWN });
    }
    TablePart {
        part: Part {
            first: range.start,
            end: range.end,
            // More than 2³² rows have no codes.
            rows: part.len() as u32,
            checksum: part.iter().fold(0, |crc, row| checksum(crc, *row)),
        },
        rows: part,
    }
}

#[cfg(test)]
mod part_tests {
    use super::*;

    fn row(code: u32, rule: Rule) -> Row {
        Row { code, rule }
    }

    /// A part is the same whatever lies before and behind it.
    #[test]
    fn each_part_begins_and_ends_by_itself() {
        let rows = vec![
            row(16, Rule::ENTRY),
            // It goes on in the second part.
            row(20, Rule::FRAME_RECORD),
            row(40, Rule::ENTRY),
            row(50, Rule::UNKNOWN),
            row(70, Rule::ENTRY),
            row(80, Rule::UNKNOWN),
        ];
        let table = CallerTable::new(rows.clone(), &[16..32, 32..64, 64..80, 80..90]);
        let parts: Vec<&[Row]> = table.parts().iter().map(|part| &part.rows[..]).collect();
        let expected = [
            &[rows[0], rows[1], row(32, Rule::UNKNOWN)][..],
            &[row(32, Rule::FRAME_RECORD), rows[2], rows[3]],
            &[rows[4], rows[5]],
        ];
        assert_eq!(parts, expected);
        assert_eq!((table.rows(), table.rows_sent()), (&rows[..], 8));
        let whole = CallerTable::new(rows.clone(), std::slice::from_ref(&(16..80)));
        assert_eq!(whole.parts()[0].rows, rows);
        assert_ne!(whole.checksum(), table.checksum());
        let many: Vec<_> = (0..20).map(|at| 16 + at * 3..19 + at * 3).collect();
        let table = CallerTable::new(rows, &many);
        assert!(table.parts().len() <= MAX_PARTS);
        assert_eq!(table.parts().last().map(|part| part.part.end), Some(76));
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// What users are told to give is what agents need.
    #[test]
    fn blocks_are_as_large_as_the_agent_has_them() {
        for rows in [0, 1, 2, 999, 1000] {
            let needed = unikprof_agent::caller_table_bytes(rows) as u64;
            assert_eq!(block_bytes(rows), needed, "{rows} rows");
        }
    }
}
