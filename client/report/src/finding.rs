//! Findings of `doctor` and of `report --analyze`: the figures that they come from, and how they
//! are written for people.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

/// The least that a line of a paragraph gets, however narrow the text is.
const LEAST: usize = 30;

/// A number that a finding comes from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Figure {
    /// A count, bytes or nanoseconds; the name says which.
    Count(u64),
    /// A number of either sign.
    Signed(i64),
    /// A share between 0 and 1, or a rate.
    Real(f64),
}

/// Words in lines, all but the first below the end of `head`.
pub(crate) fn paragraph(out: &mut String, head: &str, words: &str, columns: usize) {
    let indent = head.chars().count();
    let width = columns.saturating_sub(indent).max(LEAST);
    let mut line = head.to_owned();
    let mut used = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if used != 0 && used + 1 + length > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(indent);
            used = 0;
        }
        if used != 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// A text in lines of so many columns: a longer one goes on below its last column, which begins
/// behind a gap of two spaces or more.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.chars().count() <= columns {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let room = line.char_indices().nth(columns.saturating_sub(LEAST)).map_or(0, |(at, _)| at);
        let (head, words) = line.split_at(line[..room].rfind("  ").map_or(0, |at| at + 2));
        paragraph(&mut out, head, words, columns);
    }
    out
}

/// Writes a text in lines of so many columns, if the number is known.
pub(crate) fn write_wrapped(
    columns: Option<usize>,
    out: &mut dyn Write,
    write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    match columns {
        Some(columns) => {
            out.write_all(wrapped(&String::from_utf8_lossy(&text), columns).as_bytes())
        }
        None => out.write_all(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_hang_below_their_head() {
        let mut out = String::new();
        paragraph(&mut out, "head: ", "one two three four five six seven", 40);
        paragraph(&mut out, "", &"x".repeat(90), 40);
        assert_eq!(out, format!("head: one two three four five six seven\n{}\n", "x".repeat(90)));
        let mut out = String::new();
        paragraph(&mut out, "head: ", "one two three four five six seven eight", 10);
        assert_eq!(out, "head: one two three four five six\n      seven eight\n");
    }

    #[test]
    fn lines_that_are_too_long_go_on_below_their_last_column() {
        let text =
            "title of what follows, which has too many words\n\n  all    1  what it is, and why\n";
        assert_eq!(
            wrapped(text, 42),
            "title of what follows, which has too many\nwords\n\n  all    1  what it is, and why\n"
        );
        let row = "  all  what it is, in more words than there are columns\n";
        let expected = "  all  what it is, in more words than\n       there are columns\n";
        assert_eq!(wrapped(row, 40), expected);
    }
}
