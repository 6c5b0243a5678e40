//! Annotations as text and as JSON.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;

use super::super::Report;
use super::super::shares::{JsonShares, Shares};
use super::super::shorten;
use super::super::text::Figures;
use super::super::units::{amount, amount_with_unit, grouped};
use super::{Annotation, Line};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Unit;

/// The least columns of an inlined function's name.
const NAME: usize = 20;

impl Annotation {
    pub(in crate::report) fn write(
        &self,
        report: &Report<'_>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let unit = report.symbolized.profile().recording().unit();
        let (total, own) = (amount_with_unit(self.code.total, unit), amount(self.own, unit));
        write!(out, "\nannotation of {}: {total} total, {own} self", self.function)?;
        let inlined = self.code.own.saturating_sub(self.own);
        if inlined != 0 {
            write!(out, ", {} in functions inlined into it", amount(inlined, unit))?;
        }
        let sampled = self.lines.iter().filter(|line| line.counts.total != 0).count();
        let top = match report.options.top {
            0 => sampled,
            top => top.min(sampled),
        };
        let widest = self.lines[..top].iter().map(|line| self.line_text(line, Some(0), None));
        let widest = widest.map(|text| text.chars().count()).max().unwrap_or(0);
        let has_own = self.code.own != 0;
        let columns = Columns::fitting(unit, report.options.columns, has_own, widest);
        writeln!(
            out,
            "{}",
            match unit {
                Unit::Samples if columns.figures.has_intervals => {
                    "; shares are of all samples, intervals hold 95 %"
                }
                Unit::Samples => "; shares are of all samples",
                Unit::Nanoseconds => "; shares are of all blocked time",
                Unit::Bytes | Unit::Objects => ", estimated; shares are of all",
            }
        )?;

        // The name of the function's file leaves its room to lines that are too long.
        let mut files = self.lines.iter().filter(|line| *line.origin.function == *self.function);
        let file = files.find_map(|line| Some(&*line.origin.source.as_ref()?.0));
        let file = file.filter(|_| columns.left.is_some_and(|left| left < widest));
        let heading = file.map_or("line".to_owned(), |file| format!("line of {}", shown(file)));
        columns.write_heading(&heading, out)?;
        for line in &self.lines[..top] {
            let text = self.line_text(line, columns.left, file);
            columns.write_row(Some(&line.counts), &text, out)?;
        }
        if top < sampled {
            let left_out = grouped((sampled - top) as u64);
            writeln!(out, "{left_out} lines with fewer samples are left out; `--top 0` shows all")?;
        }

        columns.write_heading("address and instruction", out)?;
        let digits = self.instructions.iter().map(|(at, ..)| at.link_address).max();
        let digits = format!("{:x}", digits.unwrap_or(0)).len();
        let shown_ones = self.hottest(report.options.top);
        let mut shown = None;
        let mut left_out = 0;
        for (at, (instruction, line, counts)) in self.instructions.iter().enumerate() {
            if !shown_ones.contains(&at) {
                left_out += 1;
                shown = None;
                continue;
            }
            if shown != Some(*line) {
                let text = self.line_text(&self.lines[*line], columns.left, file);
                columns.write_row(None, &text, out)?;
                shown = Some(*line);
            }
            let text = format!("  {:>digits$x}  {}", instruction.link_address, instruction.text);
            let counts = (counts.total != 0).then_some(counts);
            columns.write_row(counts, &text, out)?;
        }
        if left_out != 0 {
            let left_out = grouped(left_out);
            writeln!(out, "{left_out} instructions are left out; `--top 0` shows all")?;
        }
        Ok(())
    }

    /// The places of the instructions with the most samples, each with the one before it, which is
    /// where its time may belong.
    fn hottest(&self, top: usize) -> BTreeSet<usize> {
        let all = 0..self.instructions.len();
        if top == 0 {
            return all.collect();
        }
        let mut by_count: Vec<usize> = all.collect();
        by_count.sort_by_key(|at| Reverse(self.instructions[*at].2.total));
        let mut found = BTreeSet::new();
        for at in by_count.into_iter().take_while(|at| self.instructions[*at].2.total != 0) {
            if found.len() + 2 > top {
                break;
            }
            found.extend([at.saturating_sub(1), at]);
        }
        found
    }

    /// The line's function, if it is an inlined one, its place and its text; the function is
    /// shortened first. The file that the heading names is left out.
    fn line_text(&self, line: &Line, columns: Option<usize>, named: Option<&str>) -> String {
        let mut text = match &line.origin.source {
            Some((file, number)) if named == Some(&**file) => format!(":{number}"),
            Some((file, number)) => format!("{}:{number}", shown(file)),
            None => "(no source line)".to_owned(),
        };
        if let Some(source) = &line.text {
            text += "  ";
            text += &Printable(source.replace('\t', " ").trim()).to_string();
        }
        let function = Printable(&line.origin.function).to_string();
        if function == self.function {
            return text;
        }
        let left = columns.unwrap_or(usize::MAX).saturating_sub(text.chars().count() + 1);
        format!("{} {text}", shorten::name(&function, left.max(NAME)))
    }

    pub(in crate::report) fn json(&self, report: &Report<'_>) -> JsonAnnotation<'_> {
        let unit = report.symbolized.profile().recording().unit();
        let lines = self.lines.iter().map(|line| JsonLine {
            origin: JsonOrigin::of(line),
            text: line.text.as_deref(),
            counts: line.counts.json(unit),
        });
        let instructions = self.instructions.iter().map(|(at, line, counts)| JsonInstruction {
            image: &at.image,
            address: at.link_address,
            text: &at.text,
            origin: JsonOrigin::of(&self.lines[*line]),
            counts: counts.json(unit),
        });
        JsonAnnotation {
            function: &self.function,
            own_without_inlined: self.own,
            counts: self.code.json(unit),
            lines: lines.collect(),
            instructions: instructions.collect(),
        }
    }
}

/// A file's last folder and name.
fn shown(file: &str) -> String {
    shorten::path(&Printable(file).to_string()).to_owned()
}

/// The columns of both tables.
struct Columns {
    figures: Figures,
    /// Whether there are samples of its own: a column of zeros says nothing.
    has_own: bool,
    /// What is left for the last column.
    left: Option<usize>,
}

impl Columns {
    /// With figures that leave so many columns for the last one, as far as possible.
    fn fitting(unit: Unit, columns: Option<usize>, has_own: bool, last: usize) -> Columns {
        let shares = 1 + usize::from(has_own);
        let figures = Figures::fitting(unit, columns, shares, last);
        Columns { figures, has_own, left: columns.map(|all| figures.left(all, shares)) }
    }

    fn write_heading(&self, last: &str, out: &mut impl Write) -> io::Result<()> {
        let own = if self.has_own { self.figures.heading("self") } else { String::new() };
        writeln!(out, "\n{own}{}{last}", self.figures.heading("total"))
    }

    /// A row; without counts it begins with blanks.
    fn write_row(
        &self,
        counts: Option<&Shares>,
        text: &str,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let cells = |counts: &Shares| {
            let total = self.figures.cells(counts.total, &counts.total_share);
            match self.has_own {
                true => self.figures.cells(counts.own, &counts.own_share) + &total,
                false => total,
            }
        };
        let blank = || " ".repeat((1 + usize::from(self.has_own)) * self.figures.width());
        let figures = counts.map_or_else(blank, cells);
        match self.left {
            Some(left) if text.chars().count() > left => {
                let text: String = text.chars().take(left.saturating_sub(1)).collect();
                writeln!(out, "{figures}{text}…")
            }
            _ => writeln!(out, "{figures}{text}"),
        }
    }
}

/// `annotation` in the JSON report.
#[derive(Serialize)]
pub(in crate::report) struct JsonAnnotation<'a> {
    function: &'a str,
    own_without_inlined: u64,
    #[serde(flatten)]
    counts: JsonShares,
    lines: Vec<JsonLine<'a>>,
    instructions: Vec<JsonInstruction<'a>>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    #[serde(flatten)]
    origin: JsonOrigin<'a>,
    text: Option<&'a str>,
    #[serde(flatten)]
    counts: JsonShares,
}

#[derive(Serialize)]
struct JsonInstruction<'a> {
    image: &'a str,
    address: u64,
    text: &'a str,
    #[serde(flatten)]
    origin: JsonOrigin<'a>,
    #[serde(flatten)]
    counts: JsonShares,
}

#[derive(Serialize)]
struct JsonOrigin<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
}

impl<'a> JsonOrigin<'a> {
    fn of(line: &'a Line) -> JsonOrigin<'a> {
        let source = line.origin.source.as_ref();
        JsonOrigin {
            function: &line.origin.function,
            file: source.map(|(file, _)| &**file),
            line: source.map(|(_, line)| *line),
        }
    }
}
