//! Functions with their samples, their own and those below them.

use std::cmp::Reverse;
use std::collections::HashMap;

use unikprof_profile::profile::{FrameId, Interval, Unit};
use unikprof_profile::symbols::{FileId, FunctionId};

use super::Report;
use super::filter::shown_symbols;
use super::heap::{HeapTable, RowAmounts};
use super::labels::LabelId;
use super::marks::is_cut;
use super::uncertainty::{LongRun, Of, Recorded, Unplaced, clustered, late_samples};

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
    /// Of all recorded stacks, those that lack callers: broken and truncated ones.
    pub(super) cut: u64,
    /// The unit of these counts and of the rows' counts.
    pub(crate) unit: Unit,
    /// The first share among those of the first rows, by own samples and by total, whose samples
    /// come in bursts: another recording may differ by more than the rows' intervals.
    pub(crate) long_run: Option<LongRun>,
}

/// One function, or one line of a function.
#[derive(Debug, Clone)]
pub struct FunctionRow {
    pub(super) label: LabelId,
    /// Which function.
    pub function: FunctionId,
    /// Its name, and `file:line` if lines are shown separately.
    pub text: String,
    /// Counted in the function itself.
    pub own: u64,
    /// Counted in it and its callees; each stack counts once.
    pub total: u64,
    /// The same of whole stacks alone.
    pub(super) in_whole: u64,
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
        let (sums, by_frame, whole) = sums(report);
        let hottest =
            if report.options.lines { HashMap::new() } else { hottest_lines(report, by_frame) };
        let recorded = report.weights.recorded;
        let unit = report.symbolized.profile().recording().unit();
        let unplaced = Unplaced::of(report.symbolized.profile());
        let late = match unplaced {
            None => HashMap::new(),
            Some(_) => late_samples(report),
        };
        let heap = HeapTable::of(report);
        let all = Recorded { count: recorded, unit, unplaced };
        let marked = report.marked();
        let cut = marked.broken.saturating_add(marked.truncated);
        let late = |label: usize| late.get(&(label as LabelId)).copied().unwrap_or(0);
        let mut rows: Vec<FunctionRow> = sums
            .iter()
            .zip(report.labels.all())
            .enumerate()
            .filter(|(_, (sum, _))| sum.total != 0)
            .map(|(at, (sum, label))| {
                let allocated = heap.as_ref().map(|heap| (heap, heap.row(at as LabelId)));
                let (own_share, total_share) = match &allocated {
                    Some((heap, row)) => (heap.share(&row.own), heap.share(&row.total)),
                    None => {
                        let total = all.share(sum.total, late(at));
                        let total = all.with_cut(total, sum.total, sum.in_whole, cut);
                        (all.share(sum.own, 0), total)
                    }
                };
                FunctionRow {
                    label: at as LabelId,
                    function: label.function,
                    text: label.text.clone(),
                    own: sum.own,
                    total: sum.total,
                    in_whole: sum.in_whole,
                    own_share,
                    total_share,
                    heap: allocated.map(|(_, row)| row),
                    depth: sum.depth as f64 / sum.total as f64,
                    line: label.line.or_else(|| hottest.get(&label.function).copied()),
                }
            })
            .collect();
        // Stable: equal rows stay in the order of their texts.
        rows.sort_by_key(|row| (Reverse(row.own), Reverse(row.total)));
        // Where they are the same, the function's own say it.
        let mut by_total: Vec<usize> = (0..rows.len()).collect();
        by_total.retain(|at| rows[*at].total != rows[*at].own);
        by_total.sort_by_key(|at| Reverse(rows[*at].total));
        let own = (0..rows.len().min(RANKED_ROWS)).map(|at| (at, rows[at].label, Of::Own));
        let total = by_total.iter().take(RANKED_ROWS).map(|at| (*at, rows[*at].label, Of::Total));
        let asked: Vec<_> = own.chain(total).collect();
        FunctionTable {
            whole,
            cut,
            long_run: clustered(report, &all, &asked),
            rows,
            shown: report.weights.shown,
            recorded,
            unit,
        }
    }

    /// The share of one of these functions, if it has so many samples with what it calls.
    pub(super) fn total_share(&self, of: &[FunctionId], total: u64) -> Option<Interval> {
        let mut rows = self.rows.iter().filter(|row| of.contains(&row.function));
        rows.find(|row| row.total == total).map(|row| row.total_share)
    }

    /// The rows in the order of a text. By total, functions that nearly all stacks go through on the
    /// way to the work are apart, outermost first, except the innermost and those that are `kept`.
    pub fn in_order(
        &self,
        sort: SortBy,
        is_kept: impl Fn(&FunctionRow) -> bool,
    ) -> (Vec<&FunctionRow>, Vec<&FunctionRow>) {
        let mut rows: Vec<&FunctionRow> = self.rows.iter().collect();
        if sort == SortBy::Own {
            return (Vec::new(), rows);
        }
        // Stable: of equal ones, those that do most themselves come first.
        rows.sort_by_key(|row| Reverse(row.total));
        let most = self.whole as f64 * SHARED;
        let is_shared = |row: &&FunctionRow| row.in_whole as f64 >= most;
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
    in_whole: u64,
    /// The number of the last stack it is in, from 1.
    stack: u32,
    /// Sum over the total of how many functions are above it.
    depth: u128,
}

/// By label, a function's samples: it counts once a stack, and where it is outermost. By frame, the
/// samples that end there and those that go through it. And those of whole stacks.
fn sums(report: &Report<'_>) -> (Vec<Sum>, Vec<(u64, u64)>, u64) {
    let profile = report.symbolized.profile();
    let mut sums = vec![Sum::default(); report.labels.all().len()];
    let [mut ends, mut passes] = [0; 2].map(|none| vec![none; profile.frames().len()]);
    let (mut path, mut whole) = (Vec::new(), 0);
    for (sample, stack) in report.shown_samples().zip(1..) {
        path.clear();
        let mut is_whole = true;
        for frame in profile.stack(sample.node) {
            is_whole &= !is_cut(profile.frame(frame));
            if path.is_empty() {
                add(&mut ends[frame.index()], sample.count);
            }
            add(&mut passes[frame.index()], sample.count);
            path.extend_from_slice(report.labels.of_frame(frame));
        }
        let in_whole = if is_whole { sample.count } else { 0 };
        add(&mut whole, in_whole);
        if let Some(innermost) = path.first() {
            add(&mut sums[*innermost as usize].own, sample.count);
        }
        for (label, depth) in path.iter().rev().zip(0..) {
            let sum = &mut sums[*label as usize];
            if sum.stack != stack {
                sum.stack = stack;
                add(&mut sum.total, sample.count);
                add(&mut sum.in_whole, in_whole);
                sum.depth += u128::from(sample.count) * depth;
            }
        }
    }
    (sums, ends.into_iter().zip(passes).collect(), whole)
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

/// Of each function, the line with the most samples of its own, or else with the most of all.
fn hottest_lines(
    report: &Report<'_>,
    by_frame: Vec<(u64, u64)>,
) -> HashMap<FunctionId, (FileId, u32)> {
    let mut by_line: HashMap<(FunctionId, FileId, u32), (u64, u64)> = HashMap::new();
    for (at, (own, total)) in by_frame.into_iter().enumerate() {
        let symbols = report.symbolized.frame(FrameId(at as u32));
        let symbols = shown_symbols(symbols, &report.options);
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
