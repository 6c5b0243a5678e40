//! A diagnosis for people.

use std::fmt::Write as _;

use super::check::{Check, Verdict};
use super::{Diagnosis, Subject};
use crate::finding::paragraph;

/// The column in which findings begin.
const FINDING: usize = 22;

impl Diagnosis {
    /// For people: the verdict, what to do about what is not good, the worst first, and what is good;
    /// with `all` with what was found there. In lines of at most so many columns as far as words
    /// allow.
    pub fn text(&self, columns: usize, all: bool) -> String {
        let mut out = String::new();
        let kind = match self.subject {
            Subject::Recording => "recording",
            Subject::Agent => "agent",
        };
        paragraph(&mut out, "", &self.summary(), columns);
        let of = |verdict| self.checks.iter().filter(move |check| check.verdict == verdict);
        let advised = of(Verdict::Bad).chain(of(Verdict::Look));
        let advised = advised.filter_map(|check| Some((check.name, check.advice.as_ref()?)));
        for (at, (name, advice)) in advised.enumerate() {
            out.push_str(if at == 0 { "\n" } else { "" });
            paragraph(
                &mut out,
                &format!("-> {name:<width$}", width = FINDING - 3),
                advice,
                columns,
            );
        }
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "\n{kind:<FINDING$}{}", self.what);
        for verdict in [Verdict::Bad, Verdict::Look, Verdict::Good] {
            let checks: Vec<&Check> = of(verdict).collect();
            if verdict == Verdict::Good && !all && !checks.is_empty() {
                let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
                let head = format!("{:<FINDING$}", verdict.to_string());
                let names = format!("{} (--all shows more)", names.join(", "));
                paragraph(&mut out, &head, &names, columns);
                continue;
            }
            for check in checks {
                let head = format!("{:<6}{:<16}", check.verdict, check.name);
                paragraph(&mut out, &head, &check.finding, columns);
            }
        }
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
                "{what} can be trusted, with {}: see `look` below",
                things(look, "caveat", "caveats")
            ),
            (bad, _) => format!(
                "{what} cannot be trusted: see the {} marked `bad` below",
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
