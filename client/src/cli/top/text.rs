//! The table as plain text; the screen shows the same columns.

use std::fmt::Write as _;

use super::super::describe::counted;
use super::picture::{Measure, Picture, Row, Sort};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Unit;
use unikprof_profile::units::{amount_with_unit, date, duration, grouped, percent, rate_text};
use unikprof_report::report::running::Summary;
use unikprof_report::report::shares::Shares;
use unikprof_report::report::shorten;
use unikprof_report::report::text::ends;

/// The columns a name gets before figures are left out for it.
const LEAST_NAME: usize = 24;

/// Which figures stand before the names. Where the text is narrow the intervals go first, then the
/// other measure, then the time that was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    has_intervals: bool,
    has_other: bool,
    has_start: bool,
}

impl Layout {
    pub(super) fn fitting(columns: usize) -> Layout {
        let all = Layout { has_intervals: true, has_other: true, has_start: true };
        let choices = [
            all,
            Layout { has_intervals: false, ..all },
            Layout { has_intervals: false, has_other: false, ..all },
        ];
        let fits = |layout: &Layout| columns >= layout.names_begin() + LEAST_NAME;
        let least = Layout { has_start: false, ..choices[2] };
        choices.into_iter().find(fits).unwrap_or(least)
    }

    /// The width of the columns of one part of the time.
    fn part(self) -> usize {
        match (self.has_intervals, self.has_other) {
            (true, _) => 32,
            (false, true) => 18,
            (false, false) => 11,
        }
    }

    /// The column in which names begin.
    pub(super) fn names_begin(self) -> usize {
        self.part() * if self.has_start { 2 } else { 1 } + 2
    }

    fn cells(self, first: &str, interval: &str, other: &str) -> String {
        let width = if self.has_other { 8 } else { 11 };
        let mut text = format!("{first:>width$}");
        if self.has_intervals {
            let _ = write!(text, "  {interval:>12}");
        }
        if self.has_other {
            let _ = write!(text, "  {other:>8}");
        }
        text
    }
}

/// A table with its head.
pub(super) fn table(picture: &Picture, top: usize, columns: usize) -> String {
    let mut text = head(picture, columns).join("\n");
    let measure = Measure::default();
    let layout = Layout::fitting(columns);
    let [parts, columns_heading] = headings(layout, measure, Sort::Recent, &picture.recent);
    // A string takes everything.
    let _ = writeln!(text, "\n\n{parts}\n{columns_heading}");
    let rows = picture.sorted(Sort::Recent, measure, None);
    let most = if top == 0 { rows.len() } else { top };
    let name_columns = columns.saturating_sub(layout.names_begin());
    for row in rows.iter().take(most) {
        let figures = figures(layout, row, measure, picture.unit());
        let _ = writeln!(text, "{figures}{}", shorten::name(&row.name, name_columns));
    }
    for warning in &picture.warnings {
        let _ = writeln!(text, "warning: {}", Printable(warning));
    }
    text + "\n"
}

/// What was recorded, and how the vCPUs' time went: of each line as much as has room.
pub(super) fn head(picture: &Picture, columns: usize) -> Vec<String> {
    let when = picture.unix_ns.and_then(date);
    let when = when.unwrap_or_else(|| format!("{} up", duration(picture.at_ns)));
    let guest = match picture.guest.as_str() {
        "" => "(unnamed)",
        guest => guest,
    };
    let whose = if picture.is_own { ", started by top" } else { "" };
    let lines = [
        format!(
            "{when}  guest {}, {}  recording `{}` ({}, {} Hz{whose})",
            Printable(guest),
            counted(picture.vcpus.into(), "vCPU"),
            Printable(&picture.recording),
            picture.mode,
            rate_text(picture.period_ns),
        ),
        summary("recent", &picture.recent, picture.unit()),
        summary("watched", &picture.watched, picture.unit()),
    ];
    // Half a number is another one.
    let fitting = |mut line: String| {
        while line.chars().count() > columns
            && let Some(at) = line.rfind(", ")
        {
            line.truncate(at);
        }
        line
    };
    lines.map(fitting).into()
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
        ", blocked {}, stolen {} of the wanted time",
        share(of.blocked_share()),
        share(of.runstate.stolen_share())
    );
    // Beside few samples it is noise.
    let missing = of.counters.missing.unwrap_or(0);
    if missing > 100 && missing as f64 > of.recorded as f64 * 0.05 {
        let _ = write!(line, ", missing {}", grouped(missing));
    }
    line
}

/// The two lines above the rows; the column that they are sorted by is marked.
pub(super) fn headings(
    layout: Layout,
    measure: Measure,
    sort: Sort,
    recent: &Summary,
) -> [String; 2] {
    let width = layout.part();
    let part = |title: &str| match layout.has_other {
        true => format!("{title:^width$}"),
        false => format!("{title:>width$}"),
    };
    let columns = |is_sorted: bool| {
        let mark = if is_sorted { "*" } else { "" };
        let first = format!("{}{mark}", measure.name());
        layout.cells(&first, "interval", measure.other().name())
    };
    let name = match sort {
        Sort::Name => "function*",
        _ => "function",
    };
    let (mut titles, mut heads) =
        (part(&format!("last {}", duration(recent.length_ns))), columns(sort == Sort::Recent));
    if layout.has_start {
        titles += &part("watched");
        heads += &columns(sort == Sort::Watched);
    }
    [titles.trim_end().to_owned(), format!("{heads}  {name}")]
}

/// What stands before a row's name.
pub(super) fn figures(layout: Layout, row: &Row, measure: Measure, unit: Unit) -> String {
    let mut text = columns(layout, row.recent.as_ref(), measure, unit);
    if layout.has_start {
        text += &columns(layout, row.watched.as_ref(), measure, unit);
    }
    text + "  "
}

fn columns(layout: Layout, shares: Option<&Shares>, measure: Measure, unit: Unit) -> String {
    let Some(shares) = shares else {
        return layout.cells("-", "", "-");
    };
    let first = measure.share(shares);
    let interval = match unit {
        Unit::Samples => ends(&first, " - "),
        // Measured, not sampled.
        Unit::Nanoseconds | Unit::Bytes | Unit::Objects => String::new(),
    };
    let second = measure.other().share(shares);
    layout.cells(&percent(first.share), &interval, &percent(second.share))
}

#[cfg(test)]
mod tests {
    use super::super::picture::tests::picture;
    use super::*;

    #[test]
    fn a_plain_table() {
        let expected = "\
2023-11-14 22:13:20 UTC  guest shop, 2 vCPUs  recording `flight` (cpu, 997 Hz)
recent      10 s: 100 samples, 0/s, blocked -, stolen - of the wanted time
watched     1 min 40 s: 1,000 samples, 0/s, blocked -, stolen - of the wanted time

           last 10 s                        watched
  total*      interval      self   total      interval      self  function
 100.0 %  96.3 - 100.0     0.0 % 100.0 %  99.6 - 100.0     0.1 %  main
  90.0 %   82.6 - 94.5    90.0 %  30.0 %   27.2 - 32.9    30.0 %  shop::new

";
        let found = table(&picture(), 2, 90);
        assert_eq!(found, expected, "\n{found}");
    }

    /// Rows never wrap, and names keep 24 columns as long as there is a figure beside one to go.
    #[test]
    fn figures_go_before_names_do() {
        for (columns, names_begin) in [(90, 66), (80, 38), (60, 24), (40, 13), (20, 13)] {
            let layout = Layout::fitting(columns);
            assert_eq!(layout.names_begin(), names_begin, "{columns}");
            let heads = headings(layout, Measure::Own, Sort::Recent, &picture().recent);
            let name = heads[1].find("function").unwrap_or(0);
            assert_eq!(name, names_begin, "{heads:?}");
            for row in &picture().rows {
                let figures = figures(layout, row, Measure::Own, Unit::Samples);
                assert_eq!(figures.len(), names_begin, "{figures}");
            }
        }
    }
}
