//! An analysis for people.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::super::text::{ends, name_columns};
use super::super::{DEFAULT_COLUMNS, Report, shorten};
use super::{Analysis, Subject, dominating};
use crate::finding::paragraph;
use unikprof_profile::profile::{Interval, Unit};
use unikprof_profile::symbols::FunctionKind;
use unikprof_profile::units::percent;

/// A name is not made shorter than that.
const NAME: usize = 20;

/// The columns of score and rule.
const SCORE: usize = 5;
const RULE: usize = 20;

impl Analysis {
    pub(in super::super) fn write(
        &self,
        columns: Option<usize>,
        name: Option<usize>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let columns = columns.unwrap_or(DEFAULT_COLUMNS);
        let name = name.unwrap_or(usize::MAX);
        let mut text = String::new();
        let indent = SCORE + 2 + RULE + 2;
        let below = " ".repeat(indent);
        // A word that is wider stands out of the lines.
        let is_fitting = |word: &str| word.chars().count() + indent <= columns;
        let fits = |text: &str| text.split(' ').all(is_fitting);
        let fitted = |text: &str| shorten::like_table(text, name, NAME, fits);
        for finding in &self.findings {
            let head = format!("{:>SCORE$}  {:<RULE$}  ", finding.score, finding.rule);
            paragraph(&mut text, &head, &fitted(&finding.finding), columns);
            for evidence in &finding.evidence {
                paragraph(&mut text, &below, &fitted(evidence), columns);
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

    /// Whether a finding tells what this warning does.
    pub(in super::super) fn tells(&self, warning: &str) -> bool {
        self.findings.iter().any(|found| warning.starts_with(&found.finding))
    }

    /// What takes the time, in at most three lines: functions first, and nothing that a warning
    /// tells.
    pub(in super::super) fn write_answer(
        &self,
        report: &Report<'_>,
        warnings: &[String],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let columns = report.options.columns.unwrap_or(DEFAULT_COLUMNS);
        const MOST: usize = 3;
        let is_news = |text: &&String| !warnings.iter().any(|it| it.starts_with(*text));
        let found = self.findings.iter().map(|found| &found.finding).filter(is_news);
        let lines: Vec<&String> = self.most.iter().chain(found).take(MOST).collect();
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\n{}",
            match report.functions().unit {
                Unit::Samples | Unit::Nanoseconds => "what takes the time",
                Unit::Bytes | Unit::Objects => "what takes the memory",
            }
        )?;
        let name = name_columns(report).unwrap_or(usize::MAX);
        let mut text = String::new();
        for line in lines {
            let fits = |text: &str| text.chars().count() + 2 <= columns;
            paragraph(&mut text, "  ", &shorten::like_table(line, name, NAME, fits), columns);
        }
        out.write_all(text.as_bytes())
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

/// `62.7 % (59.6 to 65.8)`; what was measured has no interval.
pub(super) fn with_interval(share: &Interval, unit: Unit) -> String {
    let percent = percent(share.share);
    match share.ends(unit) {
        Some(_) => format!("{percent} ({})", ends(share, " to ")),
        None => percent,
    }
}

/// What a table calls waits.
const BLOCKED: &str = "[blocked]";

/// Of a profile without a finding about a function, the function with the most of its own.
pub(super) fn the_most(report: &Report<'_>) -> Option<String> {
    let table = report.functions();
    let is_code = |row: &&super::super::FunctionRow| {
        let kind = report.symbolized.function(row.function).kind;
        matches!(kind, FunctionKind::Named | FunctionKind::Address)
    };
    let is_blocked =
        |row: &&super::super::FunctionRow| row.text == BLOCKED && row.own_share.share > 0.5;
    if let Some(row) = table.rows.iter().find(is_blocked).filter(|_| table.unit == Unit::Samples) {
        let share = with_interval(&row.own_share, table.unit);
        return Some(format!("blocked for {share} of the time"));
    }
    if let Some(row) = dominating::most(&Subject::of(report)) {
        let share = with_interval(&row.total_share, table.unit);
        return Some(format!("most is in `{}` and what it calls: {share}", row.text));
    }
    // The table begins with the most of its own.
    let mut rows = table.rows.iter().filter(|row| row.own > 0);
    let row = rows.find(|row| is_code(row) || row.text == BLOCKED)?;
    let share = with_interval(&row.own_share, table.unit);
    if row.text == BLOCKED {
        return Some(format!("blocked for {share} of the time"));
    }
    Some(format!("the most of its own has `{}`: {share}", row.text))
}
