//! An analysis for people.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::super::DEFAULT_COLUMNS;
use super::Analysis;
use crate::finding::paragraph;

/// The columns of score and rule.
const SCORE: usize = 5;
const RULE: usize = 20;

impl Analysis {
    pub(in super::super) fn write(
        &self,
        columns: Option<usize>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let columns = columns.unwrap_or(DEFAULT_COLUMNS);
        let mut text = String::new();
        let indent = SCORE + 2 + RULE + 2;
        let below = " ".repeat(indent);
        for finding in &self.findings {
            let head = format!("{:>SCORE$}  {:<RULE$}  ", finding.score, finding.rule);
            paragraph(&mut text, &head, &finding.finding, columns);
            for evidence in &finding.evidence {
                paragraph(&mut text, &below, evidence, columns);
            }
            paragraph(&mut text, &below, &format!("-> {}", finding.next), columns);
        }
        writeln!(out, "\n{}", self.summary())?;
        if !self.findings.is_empty() {
            writeln!(out, "\n{:>SCORE$}  {:<RULE$}  finding", "score", "rule")?;
        }
        out.write_all(text.as_bytes())?;
        if !self.quiet.is_empty() {
            let mut quiet = String::new();
            paragraph(
                &mut quiet,
                "",
                &format!("nothing found by: {}", self.quiet.join(", ")),
                columns,
            );
            write!(out, "\n{quiet}")?;
        }
        for (why, rules) in self.unchecked_by_reason() {
            let mut text = String::new();
            let words = format!("not checked: {}: {why}", rules.join(", "));
            paragraph(&mut text, "", &words, columns);
            out.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    /// The rules that were not checked, by the reason, in the order of their first rules.
    fn unchecked_by_reason(&self) -> Vec<(&str, Vec<&str>)> {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for unchecked in &self.unchecked {
            match reasons.iter_mut().find(|(why, _)| *why == unchecked.why) {
                Some((_, rules)) => rules.push(unchecked.rule),
                None => reasons.push((unchecked.why, vec![unchecked.rule])),
            }
        }
        reasons
    }

    /// What was found, in a sentence.
    pub(crate) fn summary(&self) -> String {
        let found_by: BTreeSet<&str> = self.findings.iter().map(|found| found.rule).collect();
        let checked = self.quiet.len() + found_by.len();
        match self.findings.len() {
            0 if checked == 0 => "analysis of the guest: no rule could be checked".to_owned(),
            0 => format!("analysis of the guest: none of {checked} rules found anything"),
            1 => format!("analysis of the guest: 1 finding of {checked} rules"),
            found => format!("analysis of the guest: {found} findings of {checked} rules"),
        }
    }
}
