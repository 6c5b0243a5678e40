//! A trace for programs: its JSON, and the events that Chrome's and Perfetto's viewers read.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::view::{Row, TraceView};
use unikprof_profile::trace::{Calls, End, last_of};

/// The equal parts of the trace that calls are counted in.
const BINS: usize = 100;

pub(super) fn write(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut all = document(view, &view.rows());
    if let (Some(calls), Some(all)) = (&view.calls, all.as_object_mut()) {
        all.insert("lost_records".into(), calls.lost.into());
        all.insert("holes".into(), holes(calls));
        all.insert("calls".into(), single_calls(view, calls));
    }
    writeln!(out, "{all}")
}

/// All but the calls, with the functions in the order of their rows.
pub(super) fn document(view: &TraceView<'_>, rows: &[Row]) -> Value {
    let trace = view.trace;
    let (from_ns, to_ns) = trace.extent();
    let over_time = view.over_time(BINS);
    let functions = rows.iter().map(|row| {
        let over_time = over_time.as_ref().map(|all| &all[row.function]);
        function(view, row, over_time)
    });
    let refused = view.refused();
    let refused = refused.iter().map(|(name, reason)| json!({"function": name, "reason": reason}));
    let state = trace.state.as_ref();
    json!({
        "patterns": trace.order.patterns,
        "inside": trace.order.inside,
        "count_only": trace.order.count_only,
        "slow_ns": trace.order.slow_ns,
        "started_ns": from_ns,
        "ended_ns": to_ns,
        "started_unix_ns": view.began_unix_ns,
        "probes": trace.armed.map_or(0, |armed| armed.probes),
        "probe_cycles": trace.ready.map(|ready| ready.probe_cycles),
        "breakpoints": state.map(|state| state.traps),
        "cost_permille": state.map(|state| state.cost_permille),
        "functions": functions.collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
        "warnings": view.warnings(),
    })
}

fn function(view: &TraceView<'_>, row: &Row, over_time: Option<&Vec<u64>>) -> Value {
    let traced = &view.trace.functions[row.function];
    let buckets = traced.histogram.iter().enumerate().filter(|(_, calls)| **calls > 0);
    let buckets = buckets.map(|(bucket, calls)| {
        json!({
            "from_ns": unikprof_proto::message::bucket_floor(bucket),
            "to_ns": last_of(bucket),
            "calls": calls,
        })
    });
    let callers = super::by_caller(&traced.callers).into_iter();
    let callers = callers.map(|(name, calls)| json!({"function": name, "calls": calls}));
    json!({
        "function": view.name(row.function),
        "calls": row.calls,
        "returned": row.returned,
        "unwound": row.unwound,
        "replaced": row.replaced,
        "open": row.open,
        "lost_ends": row.lost,
        "orphans": row.orphans,
        "total_ns": row.total_ns,
        "self_ns": row.self_ns,
        "waited_ns": row.waited_ns,
        "min_ns": row.min_ns,
        "p50_ns": row.p50_ns,
        "p99_ns": row.p99_ns,
        "max_ns": row.max_ns,
        "removed": traced.is_removed(),
        "histogram": buckets.collect::<Vec<_>>(),
        "callers": callers.collect::<Vec<_>>(),
        "calls_over_time": over_time,
    })
}

fn holes(calls: &Calls) -> Value {
    let holes = calls.holes.iter();
    let holes = holes.map(|it| json!({"vcpu": it.vcpu, "from_ns": it.from_ns, "to_ns": it.to_ns}));
    holes.collect::<Vec<_>>().into()
}

/// The calls that are not left out, in the order of their beginnings. `parent` is the place in this
/// list of the innermost call around one.
fn single_calls(view: &TraceView<'_>, calls: &Calls) -> Value {
    let inside_ns = view.inside_ns(calls);
    let mut places: Vec<Option<usize>> = vec![None; calls.all.len()];
    let mut list = Vec::new();
    for (at, call) in calls.all.iter().enumerate() {
        let parent = call.parent.and_then(|parent| places[parent]);
        if view.is_left_out(calls, at) {
            places[at] = parent;
            continue;
        }
        places[at] = Some(list.len());
        list.push(json!({
            "function": view.name(call.function.into()),
            "parent": parent,
            "vcpu": call.vcpu,
            "stack": call.stack,
            "start_ns": call.start_ns,
            "duration_ns": call.duration_ns(),
            "self_ns": call.duration_ns().saturating_sub(inside_ns[at]),
            "waited_ns": call.waited_ns,
            "end": end_text(call.end),
            "has_hole": call.has_hole,
        }));
    }
    list.into()
}

fn end_text(end: End) -> &'static str {
    match end {
        End::Returned => "returned",
        end => end.text(),
    }
}

/// The Trace Event Format: a complete event for each call, a thread for each stack of the guest.
pub(super) fn write_chrome(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (from_ns, _) = view.trace.extent();
    let micros = |ns: u64| ns as f64 / 1e3;
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "";
    for (stack, name) in stacks(view) {
        let event = json!({
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": stack,
            "args": {"name": name},
        });
        write!(out, "{separator}\n{event}")?;
        separator = ",";
    }
    let calls = view.calls.iter();
    let calls = calls.flat_map(|calls| calls.all.iter().enumerate().map(move |it| (calls, it)));
    for (calls, (at, call)) in calls {
        if view.is_left_out(calls, at) {
            continue;
        }
        let event = json!({
            "ph": "X",
            "name": view.name(call.function.into()),
            "cat": "call",
            "pid": 1,
            "tid": call.stack,
            "ts": micros(call.start_ns.saturating_sub(from_ns)),
            "dur": micros(call.duration_ns()),
            "args": {
                "vcpu": call.vcpu,
                "waited_us": micros(call.waited_ns),
                "end": end_text(call.end),
            },
        });
        write!(out, "{separator}\n{event}")?;
        separator = ",";
    }
    writeln!(out, "\n]}}")
}

/// The stacks of the guest that have calls, each with a name.
pub(super) fn stacks(view: &TraceView<'_>) -> Vec<(u64, String)> {
    let calls = view.calls.iter().flat_map(|calls| &calls.all);
    let mut stacks: Vec<(u64, u32)> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for call in calls {
        if known.insert(call.stack) {
            stacks.push((call.stack, call.vcpu));
        }
    }
    stacks.sort_unstable();
    let name = |(stack, vcpu)| (stack, format!("stack {stack} (first on vCPU {vcpu})"));
    stacks.into_iter().map(name).collect()
}
