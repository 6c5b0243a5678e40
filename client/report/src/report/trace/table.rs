//! A table with columns as wide as what they hold, and names in the rest of the terminal's width.

use std::io::{self, Write};

use crate::report::shorten;

/// Columns are left out for names to have this width.
const GOOD_NAME: usize = 24;

/// The width that a name has however narrow the terminal is.
const LEAST_NAME: usize = 16;

pub(super) struct Table {
    pub(super) head: Vec<&'static str>,
    /// What names are.
    pub(super) names: &'static str,
    pub(super) rows: Vec<Row>,
    /// Columns that can be left out, the first one first.
    pub(super) spare: &'static [usize],
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) name: String,
    /// Follows the name, and is never shortened.
    pub(super) note: String,
}

fn width(text: &str) -> usize {
    text.chars().count()
}

impl Table {
    /// Writes it in so many columns, or with whole names; returns the width of its first column.
    pub(super) fn write(&self, columns: Option<usize>, out: &mut dyn Write) -> io::Result<usize> {
        let of_column = |at: usize, head: &&str| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at));
            cells.map(|cell| width(cell)).fold(width(head), usize::max)
        };
        let all: Vec<usize> = (0..).zip(&self.head).map(|(at, head)| of_column(at, head)).collect();
        let mut shown: Vec<usize> = (0..all.len()).collect();
        let mut spare = self.spare.iter();
        let room = columns.map(|columns| {
            loop {
                let used: usize = shown.iter().map(|at| all[*at] + 1).sum();
                let room = columns.saturating_sub(used + 1);
                match spare.next() {
                    Some(left_out) if room < GOOD_NAME => shown.retain(|at| at != left_out),
                    _ => break room.max(LEAST_NAME),
                }
            }
        });
        let room = room.unwrap_or(usize::MAX);
        let line = |cell: &dyn Fn(usize) -> String| -> String {
            let cells = shown.iter().map(|at| format!("{:>1$} ", cell(*at), all[*at]));
            cells.collect()
        };
        writeln!(out, "{} {}", line(&|at| self.head[at].to_owned()), self.names)?;
        for row in &self.rows {
            let cells = line(&|at| row.cells.get(at).cloned().unwrap_or_default());
            let name = row.fitted(room, width(&cells) + 1);
            writeln!(out, "{cells} {name}")?;
        }
        Ok(all.first().copied().unwrap_or(0))
    }
}

impl Row {
    /// The name and what follows it, in so many columns that begin at column `from`.
    fn fitted(&self, room: usize, from: usize) -> String {
        let beside = room.saturating_sub(width(&self.note));
        if width(&self.name) <= beside || beside >= LEAST_NAME {
            return format!("{}{}", shorten::name(&self.name, beside), self.note);
        }
        let name = shorten::name(&self.name, room);
        format!("{name}\n{:from$}{}", "", self.note.trim_start())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn row(cells: &[&str], name: &str, note: &str) -> Row {
        Row {
            cells: cells.iter().map(|it| (*it).to_owned()).collect(),
            name: name.into(),
            note: note.into(),
        }
    }

    fn written(table: &Table, columns: Option<usize>) -> Vec<String> {
        let mut out = Vec::new();
        table.write(columns, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Guards numbers with more digits than a fixed column has, and lines that are wider than the
    /// terminal.
    #[test]
    fn columns_are_aligned_and_lines_fit() {
        let long = "first_crate::module::Type<alloc::vec::Vec<u8>>::last_function";
        let table = Table {
            head: vec!["calls", "max", "over time"],
            names: "function",
            rows: vec![
                row(&["12,345,678,901", "1 h 02 min 03 s", "▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁"], long, ""),
                row(&["1", "9 ns", ""], long, "  (1 unwound, 12 still open)"),
            ],
            spare: &[2],
        };
        for columns in [60, 80, 120] {
            let lines = written(&table, Some(columns));
            let widest = lines.iter().map(|line| width(line)).max();
            assert!(widest <= Some(columns), "{columns}: {lines:#?}");
            assert_eq!(lines[0].contains("over time"), columns > 60, "{lines:#?}");
            let ends = |text: &str, of: &str| text.split(of).next().map(|it| width(it) + width(of));
            assert_eq!(ends(&lines[0], "max"), ends(&lines[1], "03 s"), "{lines:#?}");
            assert!(lines[2].contains("function") || lines[2].contains("…"), "{lines:#?}");
            assert!(lines.iter().any(|line| line.ends_with("(1 unwound, 12 still open)")));
        }
        assert!(written(&table, None)[1].ends_with(long));
    }
}
