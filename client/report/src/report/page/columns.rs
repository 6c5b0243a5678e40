//! Columns of unsigned numbers.

use std::io::{self, Write};

/// Columns by their names, in LEB128.
#[derive(Default)]
pub(crate) struct Columns {
    columns: Vec<(&'static str, Column)>,
}

#[derive(Default)]
pub(super) struct Column {
    count: usize,
    bytes: Vec<u8>,
}

impl Column {
    pub(super) fn push(&mut self, mut value: u64) {
        self.count += 1;
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

impl Columns {
    pub(crate) fn add(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut column = Column::default();
        values.for_each(|value| column.push(value));
        self.push(name, column);
    }

    pub(super) fn push(&mut self, name: &'static str, column: Column) {
        self.columns.push((name, column));
    }

    /// A column by its differences, which may have either sign.
    pub(crate) fn add_changes(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut before = 0;
        let steps = values.map(|value| {
            let step = value.wrapping_sub(std::mem::replace(&mut before, value));
            zigzag(step as i64)
        });
        self.add(name, steps);
    }

    /// The columns' names, and how many numbers each has.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.columns.iter().map(|(name, column)| (*name, column.count))
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.columns.iter().try_for_each(|(_, column)| out.write_all(&column.bytes))
    }
}

/// Small numbers of either sign as small ones.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
