//! A recording of a load, with the truth of the same moments.

use anyhow::Result;
use std::path::Path;

use unikprof_profile::profile::{Cost, Counters, Interval};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::Symbolizer;
use unikprof_report::report::{FunctionRow, Report, ReportOptions};

use super::truth::Truth;

/// A profile of a load, and the truth about the load.
#[derive(Debug)]
pub struct Recorded {
    pub(crate) truth: Truth,
    pub(crate) counters: Counters,
    /// The cost of sampling, and the running time in ns.
    pub(crate) cost: Option<(Cost, u64)>,
    /// All samples; shares are parts of them.
    pub(crate) samples: u64,
    rows: Vec<FunctionRow>,
}

/// A function as a profile shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shown {
    pub(crate) samples: u64,
    /// Their share of all, as the report states it.
    pub(crate) share: Interval,
}

impl Recorded {
    /// Reads a recording, which must be whole, and names it.
    pub(crate) fn open(path: &Path, symbolizer: &Symbolizer, truth: Truth) -> Result<Recorded> {
        let recording = Recording::open(path, Reading::Strict)?;
        let symbolized = symbolizer.resolve(&recording.profile)?;
        let options = ReportOptions { no_inlines: true, ..ReportOptions::default() };
        let report = Report::new(&symbolized, options);
        let functions = report.functions();
        Ok(Recorded {
            truth,
            counters: recording.profile.counters(),
            cost: recording.profile.cost(),
            samples: functions.recorded,
            rows: functions.rows.clone(),
        })
    }

    pub(crate) fn own(&self, name: &str) -> Shown {
        match self.row(name) {
            Some(row) => Shown { samples: row.own, share: row.own_share },
            None => self.none(),
        }
    }

    pub(crate) fn total(&self, name: &str) -> Shown {
        match self.row(name) {
            Some(row) => Shown { samples: row.total, share: row.total_share },
            None => self.none(),
        }
    }

    /// Whether a function's interval is wider than it must be: more than twice as wide as that of
    /// so many independent samples, beyond what samples without a known place could change at
    /// either end.
    pub(crate) fn is_too_wide(&self, shown: &Shown) -> bool {
        let width = |interval: &Interval| interval.high - interval.low;
        let Counters { missing, overflow, lost, masked, late, aged, .. } = self.counters;
        let missing = u64::try_from(missing.unwrap_or(0)).unwrap_or(0);
        let unplaced = missing + overflow + lost + masked + late + aged;
        let independent = Interval::wilson(shown.samples, self.samples);
        let unplaced = unplaced as f64 / self.samples.max(1) as f64;
        width(&shown.share) > 2.0 * (width(&independent) + unplaced)
    }

    /// The samples whose leaf is a mark that begins so, such as `[sample arrived late]`.
    pub(crate) fn marked(&self, mark: &str) -> u64 {
        let rows = self.rows.iter().filter(|row| row.text.starts_with(mark));
        rows.map(|row| row.own).sum()
    }

    fn none(&self) -> Shown {
        Shown { samples: 0, share: Interval::wilson(0, self.samples) }
    }

    /// The function whose path ends with `name`.
    fn row(&self, name: &str) -> Option<&FunctionRow> {
        self.rows.iter().find(|row| {
            row.text.strip_suffix(name).is_some_and(|path| path.is_empty() || path.ends_with("::"))
        })
    }
}
