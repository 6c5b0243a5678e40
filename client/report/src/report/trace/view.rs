//! A trace with its calls, and what of it is shown.

use std::collections::BTreeMap;

use unikprof_proto::trace::FunctionTotals;

use crate::report::shorten;
use unikprof_profile::printable::Printable;
use unikprof_profile::timeline::Timeline;
use unikprof_profile::trace::{Calls, End, Pattern, Trace, TracedFunction};
use unikprof_profile::units::grouped;

/// The functions that a warning names, and the columns that each gets. The table marks all.
const MOST_NAMED: usize = 2;
const NAME: usize = 24;

/// What of a trace is shown, and how.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// Only calls that took so long, in ns.
    pub min_ns: u64,
    /// Functions whose calls are replaced by those inside them.
    pub hide: Vec<Pattern>,
    /// Only calls inside of calls of this function.
    pub inside: Option<Pattern>,
    /// Functions whose callers and longest calls are shown.
    pub of: Option<Pattern>,
    /// How many of the longest calls are shown.
    pub slowest: usize,
    /// The order of the table.
    pub sort: Sort,
    /// How many functions the table has; 0: all.
    pub top: usize,
    /// How wide the text is; `None`: as wide as its names.
    pub columns: Option<usize>,
}

/// By what functions are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Sort {
    /// Time with the functions called
    #[default]
    Total,
    /// Time without the traced functions called
    #[value(name = "self")]
    Own,
    /// Number of calls
    Calls,
    /// The longest call
    Max,
}

/// A trace, ready to be shown.
pub struct TraceView<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) options: TraceOptions,
    /// `None` if no calls were kept.
    pub(crate) calls: Option<Calls>,
    hidden: Vec<bool>,
    within: Option<Vec<bool>>,
    /// Nanoseconds since 1970 at the trace's beginning, if the guest knows.
    pub(crate) began_unix_ns: Option<u64>,
}

/// A function's line in the table. `calls = returned + unwound + replaced + open + lost`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Row {
    pub(crate) function: usize,
    pub(crate) calls: u64,
    pub(crate) returned: u64,
    pub(crate) unwound: u64,
    pub(crate) replaced: u64,
    pub(crate) open: u64,
    /// The record of the end was lost: only where the row was made from the calls.
    pub(crate) lost: u64,
    pub(crate) orphans: u64,
    pub(crate) total_ns: u64,
    pub(crate) self_ns: u64,
    pub(crate) waited_ns: u64,
    pub(crate) min_ns: Option<u64>,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
}

impl<'t> TraceView<'t> {
    /// What is shown of a trace.
    pub fn new(
        trace: &'t Trace,
        timeline: Option<&'t Timeline>,
        options: TraceOptions,
    ) -> TraceView<'t> {
        let (began_ns, _) = trace.extent();
        let number = trace.number().filter(|_| !trace.order.count_only);
        let calls = timeline.zip(number).map(|(timeline, number)| {
            let mut calls = Calls::of(timeline, number, trace.functions.len(), began_ns);
            calls.cut_open(|function| trace.functions[usize::from(function)].is_removed());
            calls
        });
        let matching = |patterns: &[Pattern]| -> Vec<bool> {
            let functions = trace.functions.iter();
            let is_meant = |it: &TracedFunction| patterns.iter().any(|one| one.matches(&it.name));
            functions.map(is_meant).collect()
        };
        let asked = || trace.order.inside.parse().ok();
        let within = options.inside.clone().or_else(asked);
        TraceView {
            trace,
            hidden: matching(&options.hide),
            within: within.map(|pattern| matching(&[pattern])),
            began_unix_ns: timeline.and_then(|it| it.wall_clock().unix_ns(began_ns)),
            calls,
            options,
        }
    }

    /// A function's name, made safe for terminals and files.
    pub(crate) fn name(&self, function: usize) -> String {
        let name = self.trace.functions.get(function);
        name.map_or_else(String::new, |it| Printable(&it.name).to_string())
    }

    /// The functions that `--of` means.
    pub(crate) fn detailed(&self) -> Vec<usize> {
        let Some(pattern) = &self.options.of else {
            return Vec::new();
        };
        let functions = self.trace.functions.iter().enumerate();
        let meant = functions.filter(|(_, it)| pattern.matches(&it.name));
        meant.map(|(at, _)| at).collect()
    }

    /// The longest of `calls`, of the functions that `--of` means, or else of those that are not
    /// inside another one that is shown.
    pub(crate) fn slowest(&self, calls: &Calls) -> Vec<usize> {
        let detailed = self.detailed();
        let is_shown = |at: &usize| !self.is_left_out(calls, *at);
        let is_meant = |at: &usize| match detailed.as_slice() {
            [] => !ancestors(calls, *at).any(|it| is_shown(&it)),
            some => some.contains(&usize::from(calls.all[*at].function)),
        };
        let shown = (0..calls.all.len()).filter(is_shown);
        let mut chosen: Vec<usize> = shown.filter(is_meant).collect();
        chosen.sort_by_key(|at| (std::cmp::Reverse(calls.all[*at].duration_ns()), *at));
        chosen.truncate(self.options.slowest);
        chosen
    }

    /// Whether only calls inside another function are shown.
    pub(crate) fn is_part(&self) -> bool {
        self.within.is_some()
    }

    /// The functions' lines, in the order that was asked for. They are the agent's counts; or, if
    /// only calls inside another function are shown, what the calls add up to.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = match (&self.within, &self.calls) {
            (Some(_), Some(calls)) => self.rows_of_calls(calls),
            _ => self.rows_of_totals(),
        };
        rows.retain(|row| row.calls > 0 || row.orphans > 0);
        rows.sort_by_key(|row| {
            let key = match self.options.sort {
                Sort::Total => row.total_ns,
                Sort::Own => row.self_ns,
                Sort::Calls => row.calls,
                Sort::Max => row.max_ns.unwrap_or(0),
            };
            (std::cmp::Reverse((key, row.calls)), row.function)
        });
        rows
    }

    fn rows_of_totals(&self) -> Vec<Row> {
        let functions = self.trace.functions.iter().enumerate();
        let row = |(at, function): (usize, &TracedFunction)| {
            let FunctionTotals {
                calls,
                unwound,
                replaced,
                orphans,
                total_ns,
                self_ns,
                waited_ns,
                min_ns,
                max_ns,
                ..
            } = function.totals;
            let returned = function.ended();
            let seen = |ns: u64| (returned > 0).then_some(ns);
            Row {
                function: at,
                calls,
                returned,
                unwound,
                replaced,
                open: function.open(),
                lost: 0,
                orphans,
                total_ns,
                self_ns,
                waited_ns,
                min_ns: seen(min_ns),
                p50_ns: function.quantile(500),
                p99_ns: function.quantile(990),
                max_ns: seen(max_ns),
            }
        };
        functions.map(row).collect()
    }

    fn rows_of_calls(&self, calls: &Calls) -> Vec<Row> {
        let count = self.trace.functions.len();
        let mut rows: Vec<Row> =
            (0..count).map(|function| Row { function, ..Row::default() }).collect();
        let mut durations: Vec<Vec<u64>> = vec![Vec::new(); count];
        let inside_ns = self.inside_ns(calls);
        for (at, call) in calls.all.iter().enumerate() {
            if !self.is_shown(calls, at) {
                continue;
            }
            let function = usize::from(call.function);
            let row = &mut rows[function];
            row.calls += 1;
            *match call.end {
                End::Returned => &mut row.returned,
                End::Unwound => &mut row.unwound,
                End::Replaced => &mut row.replaced,
                End::Open => &mut row.open,
                End::Lost => &mut row.lost,
            } += 1;
            let duration_ns = call.duration_ns();
            if is_outermost(calls, at) {
                row.total_ns = row.total_ns.saturating_add(duration_ns);
            }
            let self_ns = duration_ns.saturating_sub(inside_ns[at]);
            row.self_ns = row.self_ns.saturating_add(self_ns);
            row.waited_ns = row.waited_ns.saturating_add(call.waited_ns);
            if call.end == End::Returned {
                durations[function].push(duration_ns);
            }
        }
        for (row, durations) in rows.iter_mut().zip(&mut durations) {
            durations.sort_unstable();
            let at = |permille: usize| {
                let place = (durations.len() * permille).div_ceil(1000).max(1) - 1;
                durations.get(place).copied()
            };
            row.min_ns = durations.first().copied();
            row.p50_ns = at(500);
            row.p99_ns = at(990);
            row.max_ns = durations.last().copied();
        }
        rows
    }

    /// By call: how long the vCPU did not run in it and in the calls inside it.
    pub(super) fn waited_ns(calls: &Calls) -> Vec<u64> {
        let mut waited_ns: Vec<u64> = calls.all.iter().map(|call| call.waited_ns).collect();
        for (at, call) in calls.all.iter().enumerate().rev() {
            if let Some(parent) = call.parent {
                waited_ns[parent] = waited_ns[parent].saturating_add(waited_ns[at]);
            }
        }
        waited_ns
    }

    /// By call: the duration of the calls directly inside it.
    pub(crate) fn inside_ns(&self, calls: &Calls) -> Vec<u64> {
        let mut inside_ns = vec![0_u64; calls.all.len()];
        for call in &calls.all {
            if let Some(parent) = call.parent {
                inside_ns[parent] = inside_ns[parent].saturating_add(call.duration_ns());
            }
        }
        inside_ns
    }

    /// Whether a call lies within those that are shown.
    pub(crate) fn is_shown(&self, calls: &Calls, at: usize) -> bool {
        let Some(within) = &self.within else {
            return true;
        };
        let is_within = |call: usize| within[usize::from(calls.all[call].function)];
        is_within(at) || ancestors(calls, at).any(is_within)
    }

    /// Whether a call is not drawn: it is hidden, too short, or outside of what is shown.
    pub(crate) fn is_left_out(&self, calls: &Calls, at: usize) -> bool {
        let call = &calls.all[at];
        self.hidden[usize::from(call.function)]
            || call.duration_ns() < self.options.min_ns
            || !self.is_shown(calls, at)
    }

    /// By function: its calls in each of `bins` equal parts of the trace. `None` if no calls were
    /// kept.
    pub(crate) fn over_time(&self, bins: usize) -> Option<Vec<Vec<u64>>> {
        let calls = self.calls.as_ref()?;
        let mut counts = vec![vec![0_u64; bins]; self.trace.functions.len()];
        for (at, call) in calls.all.iter().enumerate() {
            if !self.is_shown(calls, at) {
                continue;
            }
            counts[usize::from(call.function)][self.bin(call.start_ns, bins)] += 1;
        }
        Some(counts)
    }

    /// In which of `bins` equal parts of the trace a time is.
    pub(super) fn bin(&self, at_ns: u64, bins: usize) -> usize {
        let (from_ns, to_ns) = self.trace.extent();
        let length = u128::from(to_ns.saturating_sub(from_ns).max(1));
        let since = u128::from(at_ns.saturating_sub(from_ns));
        (since * bins as u128 / length).min(bins as u128 - 1) as usize
    }

    /// What is missing or wrong, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let trace = self.trace;
        let mut warnings = Vec::new();
        if let Some(text) = trace.end_text() {
            warnings.push(format!("the trace was not ended by its client: {text}"));
        }
        let names = || trace.functions.iter().map(|it| it.name.as_str());
        let of = self.options.of.iter().map(|it| ("--of", it));
        let hide = self.options.hide.iter().map(|it| ("--hide", it));
        let inside = self.options.inside.iter().map(|it| ("--in", it));
        for (option, pattern) in of.chain(hide).chain(inside) {
            if !names().any(|name| pattern.matches(name)) {
                warnings.push(format!(
                    "{option}: no traced function matches `{}`{}",
                    Printable(&pattern.to_string()),
                    pattern.almost(names())
                ));
            }
        }
        let removed = trace.functions.iter().filter(|it| it.is_removed());
        let removed: Vec<String> = removed.map(|it| Printable(&it.name).to_string()).collect();
        if !removed.is_empty() {
            let named = removed.iter().take(MOST_NAMED).map(|it| shorten::name(it, NAME));
            let more = match removed.len().saturating_sub(MOST_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            warnings.push(format!(
                "the trace cost more than {} % of a CPU (--max-cost), so the counts of {}{more} \
                 end early",
                f64::from(trace.order.max_cost_permille) / 10.0,
                named.collect::<Vec<_>>().join(", ")
            ));
        }
        let contradictory = trace.functions.iter().filter(|it| it.is_contradictory());
        for function in contradictory {
            warnings.push(format!(
                "the agent's counts of {} do not add up: more calls ended than there were",
                Printable(&function.name)
            ));
        }
        if let Some(state) = &trace.state {
            for (count, text) in [
                (
                    state.unplaced,
                    "breakpoints were on a thread or stack that the agent does not know, and were \
                     not counted",
                ),
                (
                    state.too_deep,
                    "entries found no room for another open call, and were not measured",
                ),
                (state.mismatched, "exits were of another function than the innermost open call"),
                (
                    state.truncated,
                    "slow calls had more calls inside than fit in the agent's memory: the newest \
                     are missing",
                ),
                (
                    state.callers_lost,
                    "calls came from places that did not fit in the agent's memory: callers are \
                     incomplete",
                ),
            ] {
                if count > 0 {
                    warnings.push(format!("{} {text}", grouped(count)));
                }
            }
        }
        if let Some(calls) = &self.calls {
            if calls.lost > 0 || !calls.holes.is_empty() {
                warnings.push(format!(
                    "{} records were lost in {} places: calls are missing, the table is complete; \
                     trace fewer functions, use --count, or a larger ring",
                    grouped(calls.lost),
                    grouped(calls.holes.len() as u64)
                ));
            }
            for (count, text) in [
                (calls.without_end, "calls have no end of their own"),
                (calls.foreign, "records in the rings are of another trace"),
                (
                    calls.unknown,
                    "records name functions that the trace does not have, or are nested too \
                     deeply: they are left out",
                ),
                (calls.backwards, "calls end before they begin: their durations count as zero"),
            ] {
                if count > 0 {
                    warnings.push(format!("{} {text}", grouped(count)));
                }
            }
        }
        warnings
    }

    /// The functions that are not traced, each with the reason.
    pub(crate) fn refused(&self) -> Vec<(String, String)> {
        let printable =
            |name: &str, reason: &str| (Printable(name).to_string(), Printable(reason).to_string());
        let by_client = self.trace.refused.iter();
        let by_client = by_client.map(|(name, reason)| printable(name, reason));
        let by_agent = self.trace.functions.iter().filter_map(|function| {
            let reason = function.refused.as_ref()?;
            Some(printable(&function.name, reason))
        });
        by_client.chain(by_agent).collect()
    }
}

/// Whether a call is not inside another one of its function.
pub(crate) fn is_outermost(calls: &Calls, at: usize) -> bool {
    !ancestors(calls, at).any(|it| calls.all[it].function == calls.all[at].function)
}

fn ancestors(calls: &Calls, at: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(calls.all[at].parent, |at| calls.all[*at].parent)
}

/// The functions that are not traced, by reason.
pub(super) fn by_reason(refused: &[(String, String)]) -> BTreeMap<&str, Vec<&str>> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in refused {
        by_reason.entry(reason).or_default().push(name);
    }
    by_reason
}
