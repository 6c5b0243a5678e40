//! A diagnosis for people.

use std::fmt::Write as _;

use super::check::Verdict;
use super::{Diagnosis, Subject};

/// The column in which findings begin.
const FINDING: usize = 22;

/// The least that a line of a finding gets, however narrow the text is.
const LEAST: usize = 30;

impl Diagnosis {
    /// For people: the verdict, then a paragraph for each check, in lines of at most so many columns as
    /// far as words allow.
    pub fn text(&self, columns: usize) -> String {
        let mut out = String::new();
        let kind = match self.subject {
            Subject::Recording => "recording",
            Subject::Agent => "agent",
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "{:<FINDING$}{}", kind, self.what);
        let _ = writeln!(out);
        for check in &self.checks {
            let head = format!("{:<6}{:<16}", check.verdict, check.name);
            paragraph(&mut out, &head, &check.finding, columns);
            if let Some(advice) = &check.advice {
                paragraph(
                    &mut out,
                    &format!("{:FINDING$}", ""),
                    &format!("-> {advice}"),
                    columns,
                );
            }
        }
        let _ = writeln!(out);
        paragraph(&mut out, "", &self.summary(), columns);
        out
    }

    /// The verdict in a sentence.
    pub(crate) fn summary(&self) -> String {
        let count = |verdict| self.checks.iter().filter(|c| c.verdict == verdict).count();
        let (look, bad) = (count(Verdict::Look), count(Verdict::Bad));
        let what = match self.subject {
            Subject::Recording => "This profile",
            Subject::Agent => "This agent's profiles",
        };
        match (bad, look) {
            (0, 0) => format!("{what} can be trusted"),
            (0, look) => format!(
                "{what} can be trusted, with {}: see `look` above",
                things(look, "caveat", "caveats")
            ),
            (bad, _) => format!(
                "{what} cannot be trusted: see the {} marked `bad` above",
                things(bad, "check", "checks")
            ),
        }
    }
}

fn things(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// Words in lines, all but the first below the end of `head`.
fn paragraph(out: &mut String, head: &str, words: &str, columns: usize) {
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
        assert_eq!(
            out,
            format!(
                "head: one two three four five six seven\n{}\n",
                "x".repeat(90)
            )
        );
        let mut out = String::new();
        paragraph(
            &mut out,
            "head: ",
            "one two three four five six seven eight",
            10,
        );
        assert_eq!(
            out,
            "head: one two three four five six\n      seven eight\n"
        );
    }
}
