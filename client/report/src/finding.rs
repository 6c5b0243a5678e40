//! Findings of `doctor` and of `report --analyze`: the figures that they come from, and how they
//! are written for people.

use std::fmt::Write as _;

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
}
