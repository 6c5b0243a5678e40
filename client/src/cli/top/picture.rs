//! What a table shows at one moment.

use std::cmp::Ordering;

use regex_lite::Regex;
use serde_json::{Value, json};

use unikprof_profile::profile::{Interval, Mode, Unit};
use unikprof_report::report::running::Summary;
use unikprof_report::report::shares::Shares;

/// A table's content.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Picture {
    pub(super) guest: String,
    pub(super) recording: String,
    /// Whether `top` started it.
    pub(super) is_own: bool,
    pub(super) mode: Mode,
    pub(super) period_ns: u64,
    pub(super) vcpus: u32,
    /// When, on the guest's clocks.
    pub(super) at_ns: u64,
    pub(super) unix_ns: Option<u64>,
    pub(super) recent: Summary,
    pub(super) watched: Summary,
    pub(super) rows: Vec<Row>,
    pub(super) warnings: Vec<String>,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) recent: Option<Shares>,
    pub(super) watched: Option<Shares>,
    pub(super) fold: Fold,
}

/// Functions that nearly all samples share are one row where rows are sorted by total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Fold {
    /// It is not one of them.
    #[default]
    None,
    /// It is one of them.
    Part,
    /// The row that stands for them.
    Whole,
}

/// By what rows are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Recent,
    Watched,
    Name,
}

/// Which samples of a function count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Measure {
    /// Those in the function itself.
    Own,
    /// Those in what it called as well.
    #[default]
    Total,
}

impl Measure {
    pub(super) fn other(self) -> Measure {
        match self {
            Measure::Own => Measure::Total,
            Measure::Total => Measure::Own,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Measure::Own => "self",
            Measure::Total => "total",
        }
    }

    fn count(self, shares: &Shares) -> u64 {
        match self {
            Measure::Own => shares.own,
            Measure::Total => shares.total,
        }
    }

    pub(super) fn share(self, shares: &Shares) -> Interval {
        match self {
            Measure::Own => shares.own_share,
            Measure::Total => shares.total_share,
        }
    }
}

impl Picture {
    pub(super) fn unit(&self) -> Unit {
        self.mode.unit()
    }

    /// The rows whose names match, sorted.
    pub(super) fn sorted(&self, by: Sort, measure: Measure, filter: Option<&Regex>) -> Vec<&Row> {
        let matches = |row: &&Row| filter.is_none_or(|filter| filter.is_match(&row.name));
        let hidden = match filter {
            None if measure == Measure::Total && by != Sort::Name => Fold::Part,
            _ => Fold::Whole,
        };
        let rows = self.rows.iter().filter(|row| row.fold != hidden);
        let mut rows: Vec<&Row> = rows.filter(matches).collect();
        let count = |shares: &Option<Shares>| {
            let shares = shares.as_ref();
            let of = |measure: Measure| shares.map_or(0, |shares| measure.count(shares));
            (of(measure), of(measure.other()))
        };
        rows.sort_by(|a, b| {
            let recent = || count(&b.recent).cmp(&count(&a.recent));
            let watched = || count(&b.watched).cmp(&count(&a.watched));
            let counts = match by {
                Sort::Recent => recent().then_with(watched),
                Sort::Watched => watched().then_with(recent),
                Sort::Name => Ordering::Equal,
            };
            counts.then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// For programs; names are stable, more may be added.
    pub(super) fn json(&self, top: usize) -> Value {
        let rows = self.sorted(Sort::Recent, Measure::Own, None);
        let most = if top == 0 { rows.len() } else { top };
        let shares = |shares: &Option<Shares>| shares.map(|shares| shares.json(self.unit()));
        let functions: Vec<Value> = rows
            .iter()
            .take(most)
            .map(|row| {
                json!({
                    "name": row.name,
                    "recent": shares(&row.recent),
                    "watched": shares(&row.watched),
                })
            })
            .collect();
        json!({
            "at_ns": self.at_ns,
            "unix_ns": self.unix_ns,
            "recording": self.recording,
            "own": self.is_own,
            "mode": self.mode.to_string(),
            "unit": self.unit().to_string(),
            "period_ns": self.period_ns,
            "recent": summary(&self.recent),
            "watched": summary(&self.watched),
            "functions": functions,
            "warnings": self.warnings,
        })
    }
}

fn summary(of: &Summary) -> Value {
    json!({
        "length_ns": of.length_ns,
        "recorded": of.recorded,
        "samples_per_second": of.samples_per_second(),
        "stolen": of.runstate.stolen_share(),
        "blocked": of.blocked_share(),
        "counters": of.counters,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Three functions: one hot now, one hot all the time, and one that is only called through.
    pub(in crate::cli::top) fn picture() -> Picture {
        let shares = |own, total, of| Shares {
            own,
            total,
            own_share: Interval::wilson(own, of),
            total_share: Interval::wilson(total, of),
        };
        let row = |name: &str, recent: Option<(u64, u64)>, start: (u64, u64)| Row {
            name: name.into(),
            recent: recent.map(|(own, total)| shares(own, total, 100)),
            watched: Some(shares(start.0, start.1, 1_000)),
            fold: Fold::None,
        };
        Picture {
            guest: "shop".into(),
            recording: "flight".into(),
            period_ns: 1_003_009,
            vcpus: 2,
            unix_ns: Some(1_700_000_000_000_000_000),
            recent: Summary { recorded: 100, length_ns: 10_000_000_000, ..Summary::default() },
            watched: Summary { recorded: 1_000, length_ns: 100_000_000_000, ..Summary::default() },
            rows: vec![
                row("main", Some((0, 100)), (1, 1_000)),
                row("shop::old", None, (600, 600)),
                row("shop::new", Some((90, 90)), (300, 300)),
            ],
            ..Picture::default()
        }
    }

    #[test]
    fn a_line_for_programs_has_both_parts_of_the_time() {
        let line = picture().json(2);
        let functions = line["functions"].as_array().map(Vec::as_slice);
        let functions = functions.unwrap_or_default();
        assert_eq!(functions.len(), 2);
        assert_eq!(functions[0]["name"], "shop::new");
        assert_eq!(functions[0]["recent"]["self_share"], 0.9);
        assert_eq!(functions[0]["watched"]["self"], 300);
        assert_eq!(line["recent"]["recorded"], 100);
        assert_eq!(line["recent"]["stolen"], Value::Null);
    }
}
