//! The table as plain text; the screen shows the same columns.

use std::fmt::Write as _;

use super::super::describe::counted;
use super::picture::{Measure, Picture, Row, Sort};
use crate::printable::Printable;
use crate::profile::Unit;
use crate::record::rate_text;
use crate::report::running::Summary;
use crate::report::shares::Shares;
use crate::report::shorten;
use crate::report::text::ends;
use crate::units::{amount_with_unit, date, duration, grouped, percent};

/// The width of the columns of one part of the time.
const PART: usize = 32;

/// The columns a name gets however narrow the text is.
const LEAST_NAME: usize = 24;

/// The column in which names begin.
pub(super) const NAMES_BEGIN: usize = 2 * PART + 2;

/// A table with its head.
pub(super) fn table(picture: &Picture, top: usize, columns: usize) -> String {
    let mut text = head(picture).join("\n");
    let measure = Measure::Own;
    let [parts, columns_heading] = headings(measure, Sort::Recent, &picture.recent);
    // A string takes everything.
    let _ = writeln!(text, "\n\n{parts}\n{columns_heading}");
    let rows = picture.sorted(Sort::Recent, measure, None);
    let most = if top == 0 { rows.len() } else { top };
    let name_columns = columns.saturating_sub(NAMES_BEGIN).max(LEAST_NAME);
    for row in rows.iter().take(most) {
        let _ = writeln!(text, "{}", line(row, measure, picture.unit(), name_columns));
    }
    for warning in &picture.warnings {
        let _ = writeln!(text, "warning: {}", Printable(warning));
    }
    text + "\n"
}

/// What was recorded, and how the vCPUs' time went.
pub(super) fn head(picture: &Picture) -> Vec<String> {
    let when = picture.unix_ns.and_then(date);
    let when = when.unwrap_or_else(|| format!("{} up", duration(picture.at_ns)));
    let guest = match picture.guest.as_str() {
        "" => "(unnamed)",
        guest => guest,
    };
    let whose = if picture.is_own { ", started by top" } else { "" };
    vec![
        format!(
            "{when}  guest {}, {}  recording `{}` ({}, {} Hz{whose})",
            Printable(guest),
            counted(picture.vcpus.into(), "vCPU"),
            Printable(&picture.recording),
            picture.mode,
            rate_text(picture.period_ns),
        ),
        summary("recent", &picture.recent, picture.unit()),
        summary("since start", &picture.since_start, picture.unit()),
    ]
}

fn summary(what: &str, of: &Summary, unit: Unit) -> String {
    let share = |share: Option<f64>| share.map_or("-".into(), percent);
    let mut line =
        format!("{what:<12}{}: {}", duration(of.length_ns), amount_with_unit(of.recorded, unit));
    if let (Unit::Samples, Some(rate)) = (unit, of.samples_per_second()) {
        let _ = write!(line, ", {rate:.0}/s");
    }
    let _ = write!(
        line,
        ", stolen {}, blocked {}",
        share(of.runstate.stolen_share()),
        share(of.blocked_share())
    );
    if let Some(missing) = of.counters.missing {
        let _ = write!(line, ", missing {}", grouped(missing));
    }
    line
}

/// The two lines above the rows; the column that they are sorted by is marked.
pub(super) fn headings(measure: Measure, sort: Sort, recent: &Summary) -> [String; 2] {
    let part = |title: &str| format!("{title:^PART$}");
    let columns = |is_sorted: bool| {
        let mark = if is_sorted { "*" } else { "" };
        let (first, second) = (format!("{}{mark}", measure.name()), measure.other().name());
        format!("{first:>8}  {:>12}  {second:>8}", "interval")
    };
    let name = match sort {
        Sort::Name => "function*",
        _ => "function",
    };
    [
        format!("{}{}", part(&format!("last {}", duration(recent.length_ns))), part("since start"))
            .trim_end()
            .to_owned(),
        format!("{}{}  {name}", columns(sort == Sort::Recent), columns(sort == Sort::SinceStart)),
    ]
}

pub(super) fn line(row: &Row, measure: Measure, unit: Unit, name_columns: usize) -> String {
    format!(
        "{}{}  {}",
        columns(row.recent.as_ref(), measure, unit),
        columns(row.since_start.as_ref(), measure, unit),
        shorten::name(&row.name, name_columns)
    )
}

fn columns(shares: Option<&Shares>, measure: Measure, unit: Unit) -> String {
    let Some(shares) = shares else {
        return format!("{:>8}  {:>12}  {:>8}", "-", "", "-");
    };
    let first = measure.share(shares);
    let interval = match unit {
        Unit::Samples => ends(&first),
        // Measured, not sampled.
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => String::new(),
    };
    let second = measure.other().share(shares);
    format!("{:>8}  {interval:>12}  {:>8}", percent(first.share), percent(second.share))
}

#[cfg(test)]
mod tests {
    use super::super::picture::tests::picture;
    use super::*;

    #[test]
    fn a_plain_table() {
        let expected = "\
2023-11-14 22:13:20 UTC  guest shop, 2 vCPUs  recording `flight` (cpu, 997 Hz)
recent      10 s: 100 samples, 0/s, stolen -, blocked -
since start 1 min 40 s: 1,000 samples, 0/s, stolen -, blocked -

           last 10 s                      since start
   self*      interval     total    self      interval     total  function
  90.0 %   82.6 - 94.5    90.0 %  30.0 %   27.2 - 32.9    30.0 %  shop::new
   0.0 %     0.0 - 3.7   100.0 %   0.1 %     0.0 - 0.6   100.0 %  main

";
        let found = table(&picture(), 2, 80);
        assert_eq!(found, expected, "\n{found}");
    }
}
