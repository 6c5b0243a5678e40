//! A trace as a page: its calls over time, a lane for each stack of the guest, and the table of
//! functions.
//!
//! The file is made as that of a report's page; `client/report/page/trace.js` shows it. What it says of
//! the whole trace is that of the JSON; of a part of the time, it counts the calls as
//! [`TraceView::rows`] does for calls inside another function.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use super::json::document;
use super::text::{facts, title};
use super::view::{Sort, TraceView, by_reason, is_outermost};
use crate::report::page::{Columns, write_data, write_page};
use unikprof_profile::trace::{Call, Calls, End};

const BODY: &str = include_str!("../../../page/trace.html");

/// The modules beside those that every page has. A module comes after those that it imports from.
const MODULES: [&str; 5] = [
    include_str!("../../../page/times.js"),
    include_str!("../../../page/traced.js"),
    include_str!("../../../page/axis.js"),
    include_str!("../../../page/lanes.js"),
    include_str!("../../../page/trace.js"),
];

/// What the columns are about.
#[derive(Serialize)]
struct Head {
    title: String,
    facts: Vec<String>,
    /// The trace as in JSON, but for the calls.
    report: Value,
    /// By index in the report's functions: the function's number.
    numbers: Vec<usize>,
    /// Whether the report is about a part of the calls, and its rows are made from them.
    is_part: bool,
    /// How calls end, by code.
    ends: [&'static str; End::ALL.len()],
    /// By number of the function.
    names: Vec<String>,
    /// What could not be traced, and why.
    refused: Vec<String>,
    /// The column that the functions are ordered by.
    sort: &'static str,
    /// `None` if no calls were kept.
    time: Option<Time>,
    columns: Vec<(&'static str, usize)>,
}

/// Times are in ns since the trace began.
#[derive(Serialize)]
struct Time {
    from_ns: u64,
    to_ns: u64,
    /// The date at the trace's beginning.
    unix_ns: Option<u64>,
    /// The guest's stacks, those with most calls first.
    lanes: Vec<String>,
    /// Of which vCPU records were lost, from and to.
    holes: Vec<(u32, u64, u64)>,
}

pub(super) fn write(view: &TraceView<'_>, mut out: &mut dyn Write) -> io::Result<()> {
    write_page(BODY, &MODULES, &mut out, |out| {
        let mut columns = Columns::default();
        let calls = view.calls.as_ref();
        let time = calls.map(|calls| add_calls(view, calls, &mut columns));
        let rows = view.rows();
        let head = Head {
            title: title(view),
            facts: facts(view),
            report: document(view, &rows),
            numbers: rows.iter().map(|row| row.function).collect(),
            is_part: view.is_part(),
            ends: End::ALL.map(End::text),
            names: (0..view.trace.functions.len()).map(|at| view.name(at)).collect(),
            refused: by_reason(&view.refused())
                .into_iter()
                .map(|(reason, names)| format!("not traced ({reason}): {}", names.join(", ")))
                .collect(),
            sort: match view.options.sort {
                Sort::Total => "total",
                Sort::Own => "own",
                Sort::Calls => "calls",
                Sort::Max => "max",
            },
            time,
            columns: columns.lengths().collect(),
        };
        write_data(&head, &columns, out)
    })
}

fn add_calls(view: &TraceView<'_>, calls: &Calls, columns: &mut Columns) -> Time {
    let (began_ns, ended_ns) = view.trace.extent();
    let since = |at_ns: u64| at_ns.saturating_sub(began_ns);
    let shown: Vec<usize> = (0..calls.all.len()).filter(|at| view.is_shown(calls, *at)).collect();
    let all = || shown.iter().map(|at| &calls.all[*at]);

    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for call in all() {
        *counts.entry(call.stack).or_default() += 1;
    }
    let mut stacks: Vec<u64> = counts.keys().copied().collect();
    stacks.sort_by_key(|stack| std::cmp::Reverse(counts[stack]));
    let places = stacks.iter().enumerate();
    let places: HashMap<u64, u64> = places.map(|(at, stack)| (*stack, at as u64)).collect();

    let inside_ns = view.inside_ns(calls);
    let own = |at: usize| calls.all[at].duration_ns().saturating_sub(inside_ns[at]);
    columns.add_changes("call_start", all().map(|call| since(call.start_ns)));
    columns.add("call_length", all().map(Call::duration_ns));
    columns.add("call_self", shown.iter().map(|at| own(*at)));
    columns.add("call_waited", all().map(|call| call.waited_ns));
    columns.add("call_function", all().map(|call| call.function.into()));
    columns.add("call_vcpu", all().map(|call| call.vcpu.into()));
    columns.add("call_lane", all().map(|call| places[&call.stack]));
    columns.add("call_row", rows(view, calls, &shown).into_iter());
    columns.add("call_end", all().map(|call| call.end as u64));
    let outermost = shown.iter().map(|at| is_outermost(calls, *at).into());
    columns.add("call_outermost", outermost);
    columns.add("call_hole", all().map(|call| call.has_hole.into()));
    let last_ns = all().map(|call| since(call.end_ns)).max().unwrap_or(0);
    let holes = calls.holes.iter();
    Time {
        from_ns: 0,
        to_ns: since(ended_ns).max(last_ns),
        unix_ns: view.began_unix_ns,
        lanes: stacks.iter().map(|stack| format!("stack {stack}")).collect(),
        holes: holes.map(|hole| (hole.vcpu, since(hole.from_ns), since(hole.to_ns))).collect(),
    }
}

/// By call: the row of its lane plus one; 0 if it is not drawn. No two calls that were open at one
/// time share a row, even if they do not nest because records were lost.
fn rows(view: &TraceView<'_>, calls: &Calls, shown: &[usize]) -> Vec<u64> {
    let mut open: HashMap<u64, Vec<u64>> = HashMap::new();
    let row = |at: &usize| {
        if view.is_left_out(calls, *at) {
            return 0;
        }
        let call = &calls.all[*at];
        let open = open.entry(call.stack).or_default();
        while open.last().is_some_and(|end_ns| *end_ns <= call.start_ns) {
            open.pop();
        }
        open.push(call.end_ns);
        open.len() as u64
    };
    shown.iter().map(row).collect()
}
