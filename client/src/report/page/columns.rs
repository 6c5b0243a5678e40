//! Columns of unsigned numbers.

use std::io::{self, Write};

/// Columns by their names, in LEB128.
#[derive(Default)]
pub(crate) struct Columns {
    columns: Vec<(&'static str, usize)>,
    bytes: Vec<u8>,
}

impl Columns {
    pub(crate) fn add(&mut self, name: &'static str, values: impl Iterator<Item = u64>) {
        let mut count = 0;
        for mut value in values {
            count += 1;
            while value >= 0x80 {
                self.bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
        }
        self.columns.push((name, count));
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
        self.columns.iter().copied()
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.bytes)
    }
}

/// Small numbers of either sign as small ones.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
