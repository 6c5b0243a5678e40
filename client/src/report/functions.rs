//! Functions with their samples, their own and those below them.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::profile::{FrameId, Interval, SpecialFrame, Unit};
use crate::symbols::{FileId, FunctionId, FunctionKind, Symbolized};

use super::filter::{Weights, shown_symbols};
use super::heap::{HeapTable, RowAmounts};
use super::labels::LabelId;
use super::merged::{Visitor, walk};
use super::uncertainty::{LongRun, Of, Recorded, Unplaced, clustered, late_samples};
use super::{Report, ReportOptions};

/// How many rows of each order are looked at for [bursts](FunctionTable::long_run).
const RANKED_ROWS: usize = 5;

/// What has more than this share of the samples with whole stacks is the way to the work.
const SHARED: f64 = 0.95;

/// By which samples the functions of a text are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    /// Those in the function itself.
    Own,
    /// Those in it and its callees.
    #[default]
    Total,
}

/// Functions (or lines, if they are shown separately) by their own samples, most first.
#[derive(Debug, Clone)]
pub struct FunctionTable {
    /// Every function of the shown stacks.
    pub rows: Vec<FunctionRow>,
    /// The total count of the shown stacks.
    pub(crate) shown: u64,
    /// The total count of the shown stacks that have their outer frames.
    pub(crate) whole: u64,
    /// The total count of all recorded stacks, to which the shares refer.
    pub recorded: u64,
    /// The unit of these counts and of the rows' counts.
    pub(crate) unit: Unit,
    /// Samples that were due at an unknown place, if the intervals include what they could change;
    /// 0 if there are too few.
    pub(crate) unplaced: u64,
    /// The first share among those of the first rows, by own samples and by total, whose samples
    /// come in bursts: another recording may differ by more than the rows' intervals.
    pub(crate) long_run: Option<LongRun>,
}

/// One function, or one line of a function.
#[derive(Debug, Clone)]
pub struct FunctionRow {
    pub(crate) function: FunctionId,
    /// Its name, and `file:line` if lines are shown separately.
    pub text: String,
    /// Counted in the function itself.
    pub own: u64,
    /// Counted in it and its callees; each stack counts once.
    pub total: u64,
    /// Its own share; the interval has no width if the share was measured and not sampled.
    pub own_share: Interval,
    /// The share of its total, likewise.
    pub total_share: Interval,
    /// The line (if lines are not shown separately, the function's line with the most samples).
    pub(crate) line: Option<(FileId, u32)>,
    /// What it allocated, where allocations were recorded.
    pub(crate) heap: Option<RowAmounts>,
    /// Below how many others it is called, on average.
    pub(super) depth: f64,
}

impl FunctionTable {
    pub(super) fn of(report: &Report<'_>) -> FunctionTable {
        let mut sums = Sums { by_label: vec![Sum::default(); report.labels.all().len()], depth: 0 };
        walk(report, 1, &mut sums);
        let hottest = if report.options.lines {
            HashMap::new()
        } else {
            hottest_lines(report.symbolized, &report.weights, &report.options)
        };
        let recorded = report.weights.recorded;
        let unit = report.symbolized.profile().recording().unit();
        let unplaced = Unplaced::of(report.symbolized.profile());
        let late = match unplaced {
            None => HashMap::new(),
            Some(_) => late_samples(report),
        };
        let heap = HeapTable::of(report);
        let all = Recorded { count: recorded, unit, unplaced };
        let late = |label: usize| late.get(&(label as LabelId)).copied().unwrap_or(0);
        let mut rows: Vec<(LabelId, FunctionRow)> = sums
            .by_label
            .iter()
            .zip(report.labels.all())
            .enumerate()
            .filter(|(_, (sum, _))| sum.total != 0)
            .map(|(at, (sum, label))| {
                let allocated = heap.as_ref().map(|heap| (heap, heap.row(at as LabelId)));
                let (own_share, total_share) = match &allocated {
                    Some((heap, row)) => (heap.share(&row.own), heap.share(&row.total)),
                    None => (all.share(sum.own, 0), all.share(sum.total, late(at))),
                };
                let row = FunctionRow {
                    function: label.function,
                    text: label.text.clone(),
                    own: sum.own,
                    total: sum.total,
                    own_share,
                    total_share,
                    heap: allocated.map(|(_, row)| row),
                    depth: sum.depth as f64 / sum.total as f64,
                    line: label.line.or_else(|| hottest.get(&label.function).copied()),
                };
                (at as LabelId, row)
            })
            .collect();
        // Stable: equal rows stay in the order of their texts.
        rows.sort_by_key(|(_, row)| (Reverse(row.own), Reverse(row.total)));
        // Where they are the same, the function's own say it.
        let mut by_total: Vec<usize> = (0..rows.len()).collect();
        by_total.retain(|at| rows[*at].1.total != rows[*at].1.own);
        by_total.sort_by_key(|at| Reverse(rows[*at].1.total));
        let own = (0..rows.len().min(RANKED_ROWS)).map(|at| (at, rows[at].0, Of::Own));
        let total = by_total.iter().take(RANKED_ROWS).map(|at| (*at, rows[*at].0, Of::Total));
        let asked: Vec<_> = own.chain(total).collect();
        let is_incomplete = |row: &&(LabelId, FunctionRow)| {
            let kind = report.symbolized.function(row.1.function).kind;
            use FunctionKind::Special;
            matches!(kind, Special(SpecialFrame::Broken | SpecialFrame::Truncated))
        };
        let incomplete = rows.iter().filter(is_incomplete).map(|(_, row)| row.total);
        let incomplete = incomplete.fold(0, u64::saturating_add);
        FunctionTable {
            whole: report.weights.shown().saturating_sub(incomplete),
            long_run: clustered(report, &all, &asked),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            shown: report.weights.shown(),
            recorded,
            unit,
            unplaced: unplaced.map_or(0, |unplaced| unplaced.count()),
        }
    }

    /// The rows in the order of a text. Functions that nearly all stacks go through on the way to
    /// the work are apart, outermost first, except the innermost and those that are `kept`.
    pub(super) fn in_order(
        &self,
        sort: SortBy,
        is_kept: impl Fn(&FunctionRow) -> bool,
    ) -> (Vec<&FunctionRow>, Vec<&FunctionRow>) {
        let mut rows: Vec<&FunctionRow> = self.rows.iter().collect();
        if sort == SortBy::Total {
            // Stable: of equal ones, those that do most themselves come first.
            rows.sort_by_key(|row| Reverse(row.total));
        }
        let most = self.whole as f64 * SHARED;
        let is_shared = |row: &&FunctionRow| row.total as f64 >= most;
        let mut shared: Vec<&FunctionRow> = rows.iter().copied().filter(is_shared).collect();
        shared.sort_by(|a, b| a.depth.total_cmp(&b.depth));
        shared.pop();
        shared.retain(|row| row.own as f64 <= self.whole as f64 - most && !is_kept(row));
        if shared.len() < 2 {
            shared.clear();
        }
        rows.retain(|row| !shared.iter().any(|it| std::ptr::eq(*it, *row)));
        (shared, rows)
    }
}

#[derive(Debug, Clone, Default)]
struct Sum {
    own: u64,
    total: u64,
    /// How often the function is on the way to where the walk is.
    active: u32,
    /// Sum over the total of how many functions are above it.
    depth: u128,
}

struct Sums {
    by_label: Vec<Sum>,
    depth: u64,
}

impl Visitor for Sums {
    fn enter(&mut self, label: LabelId, own: u64, total: u64) {
        let sum = &mut self.by_label[label as usize];
        sum.own = sum.own.saturating_add(own);
        if sum.active == 0 {
            sum.total = sum.total.saturating_add(total);
            sum.depth += u128::from(total) * u128::from(self.depth);
        }
        sum.active += 1;
        self.depth += 1;
    }

    fn skipped(&mut self, _total: u64) {}

    fn leave(&mut self, label: LabelId) {
        self.by_label[label as usize].active -= 1;
        self.depth -= 1;
    }
}

/// Of each function, the line with the most samples of its own, or else with the most of all.
fn hottest_lines(
    symbolized: &Symbolized<'_>,
    weights: &Weights,
    options: &ReportOptions,
) -> HashMap<FunctionId, (FileId, u32)> {
    let profile = symbolized.profile();
    let tree = profile.tree();
    let mut by_frame = vec![(0_u64, 0_u64); profile.frames().len()];
    for sample in profile.samples().iter().filter(|sample| weights.keeps(sample.node)) {
        if let Some(frame) = tree.item(sample.node) {
            let own = &mut by_frame[frame as usize].0;
            *own = own.saturating_add(sample.count);
        }
    }
    for (node, _, frame) in tree.iter() {
        let total = &mut by_frame[frame as usize].1;
        *total = total.saturating_add(weights.total(node));
    }
    let mut by_line: HashMap<(FunctionId, FileId, u32), (u64, u64)> = HashMap::new();
    for (at, (own, total)) in by_frame.into_iter().enumerate() {
        let symbols = shown_symbols(symbolized.frame(FrameId(at as u32)), options);
        for (depth, symbol) in symbols.iter().enumerate() {
            if let Some((file, line)) = symbol.file.zip(symbol.line) {
                let sum = by_line.entry((symbol.function, file, line)).or_default();
                sum.0 = sum.0.saturating_add(if depth == 0 { own } else { 0 });
                sum.1 = sum.1.saturating_add(total);
            }
        }
    }
    /// The samples of a line, and of equal lines the first.
    type Candidate = ((u64, u64), Reverse<(FileId, u32)>);
    let mut hottest: HashMap<FunctionId, Candidate> = HashMap::new();
    for ((function, file, line), sum) in by_line {
        let candidate = (sum, Reverse((file, line)));
        let best = hottest.entry(function).or_insert(candidate);
        *best = (*best).max(candidate);
    }
    hottest.into_iter().map(|(function, (_, Reverse(line)))| (function, line)).collect()
}
