//! An analysis for people.

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
        for unchecked in &self.unchecked {
            let mut why = String::new();
            let words = format!("not checked: {}: {}", unchecked.rule, unchecked.why);
            paragraph(&mut why, "", &words, columns);
            out.write_all(why.as_bytes())?;
        }
        Ok(())
    }

    /// What was found, in a sentence.
    pub(crate) fn summary(&self) -> String {
        let checked = super::RULES.len() - self.unchecked.len();
        match self.findings.len() {
            0 => format!("analysis of the guest: none of {checked} rules found anything"),
            1 => format!("analysis of the guest: 1 finding of {checked} rules"),
            found => format!("analysis of the guest: {found} findings of {checked} rules"),
        }
    }
}
