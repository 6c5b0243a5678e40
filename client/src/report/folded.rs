//! Folded stacks: `root;caller;leaf count`, one line for each, in the order of the names.

use std::io::{self, Write};

use super::Report;
use super::labels::{LabelId, Labels};
use super::merged::{Visitor, walk};

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = Lines {
        names: foldable_names(&report.labels),
        path: String::new(),
        lengths: Vec::new(),
        out,
        result: Ok(()),
    };
    walk(report, 1, &mut lines);
    lines.result
}

/// The labels' texts, made safe for a line of the format.
///
/// A `;` separates frames (so `[u8; 4]` becomes `[u8: 4]`); a number in the last place is the
/// count, so a name must not end in one of its own; and a line must not look like a comment.
pub(super) fn foldable_names(labels: &Labels) -> Vec<String> {
    labels
        .all()
        .iter()
        .map(|label| foldable(&label.text))
        .collect()
}

fn foldable(text: &str) -> String {
    let mut name = text.trim().replace(';', ":");
    if let Some((start, last)) = name.rsplit_once(char::is_whitespace)
        && last.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        name = format!("{start}_{last}");
    }
    if name.starts_with('#') {
        name.insert(0, '_');
    }
    if name.is_empty() {
        name.push('_');
    }
    name
}

struct Lines<'w, W> {
    names: Vec<String>,
    path: String,
    /// Of the path, before each function on it was added.
    lengths: Vec<usize>,
    out: &'w mut W,
    result: io::Result<()>,
}

impl<W: Write> Visitor for Lines<'_, W> {
    fn enter(&mut self, label: LabelId, own: u64, _total: u64) {
        self.lengths.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push(';');
        }
        self.path.push_str(&self.names[label as usize]);
        if own != 0 && self.result.is_ok() {
            self.result = writeln!(self.out, "{} {own}", self.path);
        }
    }

    /// Only stacks without samples are.
    fn skipped(&mut self, _total: u64) {}

    fn leave(&mut self, _label: LabelId) {
        let length = self.lengths.pop().unwrap_or(0);
        self.path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(foldable("f<[u8; 4]>"), "f<[u8: 4]>");
        assert_eq!(foldable("loop 12"), "loop_12");
        assert_eq!(foldable("# note"), "_# note");
        assert_eq!(foldable("  "), "_");
        assert_eq!(foldable("main src/main.rs:12"), "main src/main.rs:12");
    }
}
