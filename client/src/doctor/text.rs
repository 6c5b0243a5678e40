//! A diagnosis for people.

use std::fmt::Write as _;

use super::check::Verdict;
use super::{Diagnosis, Subject};
use crate::finding::paragraph;

/// The column in which findings begin.
const FINDING: usize = 22;

impl Diagnosis {
    /// For people: the verdict, then a paragraph for each check, in lines of at most so many
    /// columns as far as words allow.
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
                paragraph(&mut out, &format!("{:FINDING$}", ""), &format!("-> {advice}"), columns);
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
