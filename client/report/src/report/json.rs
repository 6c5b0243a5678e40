//! The report as JSON.
//!
//! One object with a stable schema: fields are added, never renamed or removed; an incompatible
//! change would increment `schema`. Counts are integers, times are nanoseconds (their names end in
//! `_ns`), shares are between 0 and 1, and values that the guest's platform cannot tell are `null`.
//!
//! ```json
//! {
//!   "schema": 1,
//!   "recording": {
//!     "name": "boot", "guest_name": "web", "guest_id": "6f1c...", "agent_version": "0.1.0",
//!     "architecture": "x86_64", "mode": "cpu", "unit": "samples", "period_ns": 1003009,
//!     "rate_hz": 997.0, "fixed_interval": false, "caller_table": 305419896,
//!     "unwind": "frame pointers", "depth": 64, "started_unix_ns": 1700000000000000000,
//!     "elapsed_ns": 30000000000, "server_ns": 1200000, "late_threshold_ns": 50000
//!   },
//!   "merged": {
//!     "files": 3, "runs": 1, "recordings": 1, "repeated_epochs": 0,
//!     "time": { "from_unix_ns": 1700000000000000000, "to_unix_ns": 1700000060000000000 },
//!     "gaps": [{ "from_unix_ns": 1700000015000000000, "to_unix_ns": 1700000030000000000 }], "overlaps": []
//!   },
//!   "counters": {
//!     "missing": -1, "missing_blocked": null,
//!     "ticks": 100, "recorded": 95, "aged": 0, "overflow": 1, "lost": 1, "masked": 1, "idle": 2,
//!     "early": 3, "late": 0, "truncated": 0, "broken": 0, "by_table": 90, "by_bytes": 3,
//!     "by_frame_pointer": 2, "mixed": 0, "blocks": 0, "blocked": 0, "blocked_overflow": 0,
//!     "blocked_aged": 0
//!   },
//!   "lateness_ns": { "count": 95, "p50": 2047, "p99": 9000, "max": 9000, "buckets": [[1792, 2047, 95]] },
//!   "cost_share": 0.0003,
//!   "vcpus": [{
//!     "vcpu": 0, "counters": {}, "elapsed_ns": 30000000000,
//!     "runstate": { "running_ns": 1, "runnable_ns": 1, "blocked_ns": 1, "offline_ns": null },
//!     "cost": {
//!       "cycles_p50": 900, "cycles_p99": 4000, "cycles_max": 9000,
//!       "cycles_per_second": 3000000000, "sampling_ns": 30000, "deliveries": 103,
//!       "delivery_ns": 90000, "deliveries_measured": 16, "share_of_running": 0.0003
//!     },
//!     "lateness_ns": {}
//!   }],
//!   "filter": { "focus": null, "ignore": null, "lines": false, "no_inlines": false, "vcpus": [0] },
//!   "samples": { "recorded": 95, "shown": 95 },
//!   "functions": [{
//!     "name": "Server::poll(int)", "raw_name": "_ZN6Server4pollEi", "image": "web.elf",
//!     "kind": "function", "file": "src/server.cc", "line": 12, "self": 40, "total": 90,
//!     "self_share": 0.42, "self_interval": [0.32, 0.52],
//!     "total_share": 0.94, "total_interval": [0.88, 0.97]
//!   }],
//!   "long_run": { "function": "Server::poll(int)", "of": "self", "interval": [0.2, 0.7] },
//!   "calls": {
//!     "direction": "callers", "function": "Server::poll(int)", "total": 90,
//!     "tree": [
//!       { "depth": 0, "name": "Server::poll(int)", "self": 0, "total": 90, "total_share": 0.94,
//!         "total_interval": [0.88, 0.97] },
//!       { "depth": 1, "name": "main", "self": 90, "total": 90, "total_share": 0.94, "total_interval": [0.88, 0.97] }
//!     ]
//!   },
//!   "annotation": {
//!     "function": "Server::poll(int)", "own_without_inlined": 30, "self": 40, "total": 90, "self_share": 0.42,
//!     "self_interval": [0.32, 0.52], "total_share": 0.94, "total_interval": [0.88, 0.97],
//!     "lines": [{
//!       "function": "Server::poll(int)", "file": "src/server.cc", "line": 12, "text": "  sum += next();", "self": 25,
//!       "total": 25, "self_share": 0.26, "self_interval": [0.18, 0.36], "total_share": 0.26,
//!       "total_interval": [0.18, 0.36]
//!     }],
//!     "instructions": [{
//!       "image": "web.elf", "address": 4198710, "text": "add    %eax,%ebx", "function": "Server::poll(int)",
//!       "file": "src/server.cc", "line": 12, "self": 25, "total": 25, "self_share": 0.26,
//!       "self_interval": [0.18, 0.36], "total_share": 0.26, "total_interval": [0.18, 0.36]
//!     }]
//!   },
//!   "analysis": {
//!     "most": null, "findings": [{
//!       "rule": "dominating function", "score": 39, "finding": "`is_spam` with what it calls has 58.0 % of the time ...",
//!       "evidence": ["most of it is in `Regex::new`"], "next": "see what it calls ...",
//!       "figures": { "share": 0.58 }, "windows": [{ "from_ns": 12000000000, "to_ns": 15000000000 }],
//!       "functions": ["is_spam"]
//!     }],
//!     "quiet": ["masked"], "unchecked": [{ "rule": "burst", "why": "..." }]
//!   },
//!   "warnings": ["..."],
//!   "window": { "from_ns": 12000000000, "to_ns": 15000000000, "inside": null,
//!     "longer_ns": null, "shorter_ns": null },
//!   "spans": [{
//!     "name": "request", "count": 9, "total_ns": 90, "p50_ns": 10, "p99_ns": 10, "max_ns": 10,
//!     "unfinished": 0, "cut": 0, "asynchronous": 0, "moved": 0,
//!     "overlapped": 0
//!   }],
//!   "values": [{ "name": "queue depth", "min": 0, "max": 7, "last": 3, "means": [null, 0.5, 3.0] }],
//!   "marks": [{ "name": "flush", "count": 2 }],
//!   "refused_names": 0,
//!   "seconds": [{
//!     "from_ns": 12000000000, "unix_ns": 1700000000000000000, "length_ns": 1000000000, "held": true,
//!     "covered": true,
//!     "ticks": 97, "recorded": 97, "shown": 97, "stolen": 0.0, "blocked": 0.02, "top": "burst", "top_share": 0.9
//!   }]
//! }
//! ```
//!
//! - `unit` is the unit of the counts in `samples` and `functions`: `samples`, or `nanoseconds` in
//!   mode `off-cpu`, where time is measured; intervals are then `null`. `blocked`,
//!   `blocked_overflow` and `blocked_aged` have this unit as well.
//! - `merged` exists only for several files: `gaps` are times that no file covers, `overlaps` times
//!   in which several runs were recorded at once. `repeated_epochs` were in more than one file and
//!   are counted once.
//! - `counters` are the sums over all vCPUs. `missing` is the independent check: it may be
//!   negative, by chance, where texts and pages say 0; it is `null` if nothing is sampled.
//!   `missing_blocked` is its part of blocked time in mode `wall`, and in mode `off-cpu` how much
//!   more was blocked than counted.
//!   `ticks = recorded + aged + overflow + lost + masked + idle`, and
//!   `recorded + aged = by_table + by_bytes + by_frame_pointer`; aged samples are in the stack
//!   `[aged]`.
//! - `lateness_ns` is the running time between targets and their delivery; a bucket is its lowest
//!   value, its highest value and its count. `p50` and `p99`, also those of cycles, are upper
//!   bounds: the highest value of their bucket. The top-level field covers all vCPUs.
//! - `cost` has the time of the upcalls, `sampling_ns`, and the estimated time of the timer's
//!   deliveries outside them, `delivery_ns`: `null` if the agent has not measured any. The shares
//!   include both.
//! - `functions` contains all functions of the shown stacks, most `self` first. If lines are shown
//!   separately there is an entry for each line; otherwise `line` is the function's line with the
//!   most samples. Shares refer to `samples.recorded`; intervals are 95 % intervals (Wilson) of
//!   what ran in this recording. If many samples have no known place, they are wider and there is a
//!   warning.
//! - `most` is a sentence: where most is, if no finding is about a function.
//! - `long_run` warns that another recording may differ by more than the intervals: the samples of
//!   `function` come in bursts, and its share, `of` `self` or `total`, is expected in this wider
//!   `interval`. It is the first such share of the first rows, or `null`.
//! - `filter.vcpus` exists only with `--vcpu`.
//! - `calls` exists only with `--callers` or `--callees`: a tree in preorder, starting with the
//!   function, each row followed by its callers or callees, one level deeper. `self` counts the
//!   stacks that end in the row: at their root for callers, at their leaf for callees.
//! - `annotation` exists only with `--annotate`. `self` counts samples at the function's code,
//!   including functions inlined into it, `own_without_inlined` those of the function itself;
//!   `lines` and `instructions` cover the same code. `lines` are sorted by `self`; `text` is `null`
//!   if the source file was not found. `instructions` are in the order of `address`, their address
//!   in the image; there are none unless the guest is of x86_64.
//! - `analysis` exists only with `--analyze`: what rules found about the guest, the highest `score`
//!   first; 25 is where a rule begins to speak, 75 is severe. `windows` are relative to the start
//!   of the recording. `quiet` rules found nothing, `unchecked` ones lack what they need. Rules'
//!   names and those of their `figures` stay, texts may change.
//! - `window` is the part of the recording that is shown, if not all of it; everything then comes
//!   from the ring's samples, and `by_table`, `by_bytes`, `by_frame_pointer` and `early` are
//!   unknown: 0.
//! - `spans`, `values` (of counters) and `marks` are the guest's own; `means` are those of 40 equal
//!   parts of the time shown; `refused_names` counts names that were too long, empty or too many.
//!   `seconds` is empty unless requested. Their `from_ns` is relative to the start of the
//!   recording; `held` says whether the rings contain all of that time, `covered` whether it does
//!   not lie between files that were merged. `recorded` is the total count of their stacks, `shown`
//!   what remains after the filters, both in `unit`s; `top` is the function with the most of
//!   `shown`, and `top_share` refers to `recorded`. `stolen` and `blocked` are shares of the time
//!   of the vCPUs whose rings cover it.
//! - `kind` is `function`, `address` (no known name), `agent` (the profiler itself) or `special` (a
//!   mark such as `[truncated]`).

use std::io::{self, Write};

use serde::Serialize;

use super::analysis::Analysis;
use super::annotation::JsonAnnotation;
use super::calls::JsonCalls;
use super::functions::FunctionRow;
use super::shares::{JsonShares, Shares};
use super::uncertainty::{LongRun, Of};
use super::{FunctionName, Report, heap, json_time, warnings};
use unikprof_profile::profile::{
    Cost, Counters, Distribution, FromRing, Merged, Runstate, VcpuStats,
};
use unikprof_profile::symbols::FunctionKind;

/// The value of `schema`.
pub(crate) const SCHEMA: u32 = 1;

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let analysis = report.is_analyzed.then(|| Analysis::of(report));
    let document = document(report, &report.functions().rows, analysis.as_ref());
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// The object, with these of the functions.
pub(super) fn document<'r>(
    report: &'r Report<'_>,
    rows: &'r [FunctionRow],
    analysis: Option<&'r Analysis>,
) -> impl Serialize + 'r {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let table = report.functions();
    let recording = profile.recording();
    let functions = rows
        .iter()
        .map(|row| {
            let function = symbolized.function(row.function);
            Function {
                name: &function.name,
                raw_name: &function.raw_name,
                image: function.image.map(|image| symbolized.image(image)),
                kind: kind(function.kind),
                file: row.line.map(|(file, _)| symbolized.file(file)),
                line: row.line.map(|(_, line)| line),
                shares: Shares::of(row).json(table.unit),
                heap: row.heap.map(|amounts| amounts.json(recording.mode)),
            }
        })
        .collect();
    let time = report.view.as_ref().or(report.beside.as_ref());
    let time = time.map(|view| json_time::of(report, view)).unwrap_or_default();
    Document {
        schema: SCHEMA,
        recording: Recording {
            name: &recording.name,
            guest_name: &recording.guest_name,
            guest_id: &recording.guest_id,
            agent_version: &recording.agent_version,
            architecture: recording.architecture.to_string(),
            mode: recording.mode.to_string(),
            unit: table.unit.to_string(),
            period_ns: recording.period_ns,
            rate_hz: recording.rate_hz(),
            interval_bytes: (recording.interval_bytes != 0).then_some(recording.interval_bytes),
            fixed_interval: recording.fixed_interval,
            caller_table: recording.caller_table,
            unwind: recording.unwind.to_string(),
            depth: recording.depth,
            started_unix_ns: recording.started_unix_ns,
            elapsed_ns: recording.elapsed_ns,
            server_ns: recording.server_ns,
            late_threshold_ns: recording.late_threshold_ns,
        },
        merged: recording.merged.as_ref(),
        counters: profile.counters(),
        lateness_ns: profile.lateness_ns().as_ref().map(Lateness::of),
        cost_share: profile.cost_share(),
        vcpus: profile.vcpus().iter().map(Vcpu::of).collect(),
        filter: Filter {
            focus: report.options.focus.as_ref().map(FunctionName::text),
            ignore: report.options.ignore.as_ref().map(FunctionName::text),
            lines: report.options.lines,
            no_inlines: report.options.no_inlines,
            vcpus: recording.only_vcpus.as_deref(),
        },
        samples: Samples { recorded: table.recorded, shown: table.shown },
        heap: heap::json(report),
        functions,
        long_run: table.long_run.map(|LongRun { row, of, share }| JsonLongRun {
            function: &table.rows[row].text,
            of,
            interval: [share.low, share.high],
        }),
        calls: report.calls.as_ref().map(|calls| calls.json(report)),
        annotation: report.annotation.as_ref().map(|found| found.json(report)),
        analysis,
        warnings: warnings::of(report),
        window: recording.ring.as_ref(),
        spans: time.spans,
        values: time.values,
        marks: time.marks,
        refused_names: time.refused_names,
        seconds: time.seconds,
    }
}

/// A word for the kind of a function's name.
pub(super) fn kind(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Named => "function",
        FunctionKind::Address => "address",
        FunctionKind::Agent => "agent",
        FunctionKind::Special(_) => "special",
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    recording: Recording<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merged: Option<&'a Merged>,
    counters: Counters,
    lateness_ns: Option<Lateness>,
    cost_share: Option<f64>,
    vcpus: Vec<Vcpu>,
    filter: Filter<'a>,
    samples: Samples,
    #[serde(skip_serializing_if = "Option::is_none")]
    heap: Option<heap::JsonHeap>,
    functions: Vec<Function<'a>>,
    long_run: Option<JsonLongRun<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<JsonCalls<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotation: Option<JsonAnnotation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    analysis: Option<&'a Analysis>,
    warnings: Vec<String>,
    window: Option<&'a FromRing>,
    spans: Vec<json_time::Span>,
    values: Vec<json_time::Values>,
    marks: Vec<json_time::Mark>,
    refused_names: u64,
    seconds: Vec<json_time::Second>,
}

#[derive(Serialize)]
struct Recording<'a> {
    name: &'a str,
    guest_name: &'a str,
    guest_id: &'a str,
    agent_version: &'a str,
    architecture: String,
    mode: String,
    unit: String,
    period_ns: u64,
    rate_hz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_bytes: Option<u64>,
    fixed_interval: bool,
    caller_table: Option<u32>,
    unwind: String,
    depth: u32,
    started_unix_ns: Option<u64>,
    elapsed_ns: u64,
    server_ns: u64,
    late_threshold_ns: u64,
}

#[derive(Serialize)]
struct Vcpu {
    vcpu: u32,
    counters: Counters,
    elapsed_ns: u64,
    runstate: Runstate,
    cost: Option<VcpuCost>,
    lateness_ns: Option<Lateness>,
}

#[derive(Serialize)]
struct Lateness {
    count: u64,
    p50: u64,
    p99: u64,
    max: u64,
    buckets: Vec<(u64, u64, u64)>,
}

impl Lateness {
    fn of(distribution: &Distribution) -> Lateness {
        Lateness {
            count: distribution.count(),
            p50: distribution.percentile(50),
            p99: distribution.percentile(99),
            max: distribution.max(),
            buckets: distribution.stretches().map(|s| (s.from, s.to, s.count)).collect(),
        }
    }
}

#[derive(Serialize)]
struct VcpuCost {
    #[serde(flatten)]
    cost: Cost,
    share_of_running: Option<f64>,
}

impl Vcpu {
    fn of(stats: &VcpuStats) -> Vcpu {
        Vcpu {
            vcpu: stats.vcpu,
            counters: stats.counters,
            elapsed_ns: stats.elapsed_ns,
            runstate: stats.runstate,
            cost: stats.cost.map(|cost| VcpuCost { cost, share_of_running: stats.cost_share() }),
            lateness_ns: stats.lateness_ns.as_ref().map(Lateness::of),
        }
    }
}

#[derive(Serialize)]
struct Filter<'a> {
    focus: Option<&'a str>,
    ignore: Option<&'a str>,
    lines: bool,
    no_inlines: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    vcpus: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Samples {
    recorded: u64,
    shown: u64,
}

#[derive(Serialize)]
struct JsonLongRun<'a> {
    function: &'a str,
    of: Of,
    interval: [f64; 2],
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    raw_name: &'a str,
    image: Option<&'a str>,
    kind: &'static str,
    file: Option<&'a str>,
    line: Option<u32>,
    #[serde(flatten)]
    shares: JsonShares,
    #[serde(flatten)]
    heap: Option<heap::JsonAmounts>,
}
