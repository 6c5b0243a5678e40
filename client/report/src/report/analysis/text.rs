//! An analysis for people.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::super::text::{ends, write_paragraph};
use super::super::{DEFAULT_COLUMNS, Report, shorten};
use super::{Analysis, Finding, Subject, dominating};
use crate::finding::paragraph;
use unikprof_profile::profile::{Interval, Unit};
use unikprof_profile::symbols::FunctionKind;
use unikprof_profile::units::percent;

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

    /// What takes the time, in at most three lines: functions first.
    pub(in super::super) fn write_answer(
        &self,
        report: &Report<'_>,
        columns: usize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        const MOST: usize = 3;
        // A name is not made shorter than that.
        const NAME: usize = 24;
        let mut lines: Vec<(String, Option<&str>)> = Vec::new();
        if !self.findings.iter().any(Finding::is_of_code) {
            lines.extend(the_most(report));
        }
        for found in &self.findings {
            lines.push((found.finding.clone(), found.functions.first().map(String::as_str)));
        }
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
        for (line, name) in lines.into_iter().take(MOST) {
            let room = columns.saturating_sub(2);
            let line = match name {
                Some(name) if line.contains(name) => {
                    let rest = line.chars().count().saturating_sub(name.chars().count());
                    line.replace(name, &shorten::name(name, room.saturating_sub(rest).max(NAME)))
                }
                _ => line,
            };
            write_paragraph("  ", &line, columns, out)?;
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

/// `62.7 % (59.6 to 65.8)`; what was measured has no interval.
pub(super) fn with_interval(share: &Interval, unit: Unit) -> String {
    let percent = percent(share.share);
    match share.ends(unit) {
        Some(_) => format!("{percent} ({})", ends(share, " to ")),
        None => percent,
    }
}

/// Of a profile without a finding about a function, the function with the most of its own.
fn the_most<'r>(report: &'r Report<'_>) -> Option<(String, Option<&'r str>)> {
    let table = report.functions();
    let is_code = |row: &&super::super::FunctionRow| {
        let kind = report.symbolized.function(row.function).kind;
        matches!(kind, FunctionKind::Named | FunctionKind::Address)
    };
    let is_blocked =
        |row: &&super::super::FunctionRow| row.text == "[blocked]" && row.own_share.share > 0.5;
    if let Some(row) = table.rows.iter().find(is_blocked).filter(|_| table.unit == Unit::Samples) {
        let share = with_interval(&row.own_share, table.unit);
        return Some((format!("blocked for {share} of the time"), None));
    }
    // Of allocations no rule judges functions.
    let stands = if table.unit == Unit::Samples { "no function stands out; " } else { "" };
    if let Some(row) = dominating::most(&Subject::of(report)) {
        let share = with_interval(&row.total_share, table.unit);
        let found = format!("{stands}most is of `{}` and what it calls: {share}", row.text);
        return Some((found, Some(&row.text)));
    }
    let row = table.rows.iter().find(is_code)?;
    let share = with_interval(&row.own_share, table.unit);
    Some((format!("{stands}the most, {share}, is of `{}` itself", row.text), Some(&row.text)))
}
