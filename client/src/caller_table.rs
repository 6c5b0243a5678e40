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
//! use unikprof_client::caller_table::ImageTable;
//! use unikprof_client::symbols::Image;
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
mod rule;
mod section;
mod stretches;
#[cfg(test)]
mod test_elf;

use unikprof_proto::caller_table::{Row, checksum};

pub use error::{CallerTableError, CompileError, Note};
pub use guest_table::{Prepared, prepare};
pub use image_table::{ImageTable, Tally};

/// The memory that an agent needs for a table of so many rows, in bytes: ten for each of an even
/// number of rows, and a little beside them.
pub fn block_bytes(rows: usize) -> u64 {
    (rows as u64)
        .div_ceil(2)
        .saturating_mul(20)
        .saturating_add(16)
}

/// A table for one agent: rows keyed by its frame codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerTable {
    rows: Vec<Row>,
    checksum: u32,
}

impl CallerTable {
    /// Takes rows that are in order.
    fn new(rows: Vec<Row>) -> CallerTable {
        let checksum = rows.iter().fold(0, |crc, row| checksum(crc, *row));
        CallerTable { rows, checksum }
    }

    /// The rows, their codes ascending.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What the table is known by.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }
}

#[cfg(all(test, feature = "demo", target_os = "linux", target_arch = "x86_64"))]
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
