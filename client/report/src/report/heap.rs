//! Allocations: their table, their accounting, and the stacks without the allocator's own
//! functions.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::Report;
use super::functions::FunctionTable;
use super::labels::LabelId;
use super::text::{Rows, ends};
use super::uncertainty::distinct_labels;
use super::units::{amount, duration, grouped, percent, share, size};
use super::warnings::notable;
use unikprof_profile::profile::{
    Amounts, Counters, Estimate, Interval, Measure, Mode, NodeId, Profile, RecordingInfo, Unit,
};
use unikprof_profile::symbols::{FunctionKind, Symbolized, allocator_depth};
use unikprof_profile::timeline::CounterSeries;

/// If names get fewer columns than this, the figures of the own share go.
const NAME_COLUMNS: usize = 36;

/// If they get fewer than this, other figures go as well.
const LEAST_NAME: usize = 24;

/// Allocations that have no stack, of all that were sampled, from which on intervals include what
/// they could change.
const NOTABLE: f64 = 0.02;

/// So far from the exact sum, in standard deviations, chance seldom takes an estimate.
const FAR: f64 = 4.0;

/// If none of so many samples was freed, frees are not reported. A guest can hold all that it
/// allocates, but seldom for long.
pub(crate) const MANY: u64 = 100;

/// What a function allocated: in itself, and with what it calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowAmounts {
    pub(crate) own: Amounts,
    pub(crate) total: Amounts,
}

/// The same for programs, of its own allocations.
#[derive(Debug, Serialize)]
pub(super) struct JsonAmounts {
    samples: u64,
    bytes: u64,
    objects: u64,
    total_bytes: u64,
    total_objects: u64,
    mean_size: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_age_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ns: Option<u64>,
}

impl RowAmounts {
    pub(super) fn json(&self, mode: Mode) -> JsonAmounts {
        let is_live = mode == Mode::Live;
        JsonAmounts {
            samples: self.own.samples,
            bytes: self.own.bytes.count(),
            objects: self.own.objects.count(),
            total_bytes: self.total.bytes.count(),
            total_objects: self.total.objects.count(),
            mean_size: self.total.mean_size(),
            mean_age_ns: self.total.mean_age_ns().filter(|_| is_live),
            oldest_ns: is_live.then_some(self.total.oldest_ns),
        }
    }
}

/// The allocations of each label of a report.
pub(super) struct HeapTable {
    whole: Amounts,
    by_label: HashMap<LabelId, RowAmounts>,
    measure: Measure,
    interval_bytes: u64,
    /// The part of all sampled allocations that has no stack, if it is notable.
    unplaced: f64,
}

impl HeapTable {
    /// `None` where time was recorded.
    pub(super) fn of(report: &Report<'_>) -> Option<HeapTable> {
        let profile = report.symbolized.profile();
        let heap = profile.heap.as_ref()?;
        let info = profile.recording();
        let mut by_label: HashMap<LabelId, RowAmounts> = HashMap::new();
        for (&(node, _), amounts) in &heap.amounts {
            if !report.weights.keeps(node) {
                continue;
            }
            for (at, label) in distinct_labels(report, node).into_iter().enumerate() {
                let row = by_label.entry(label).or_default();
                row.total.plus(amounts);
                if at == 0 {
                    row.own.plus(amounts);
                }
            }
        }
        let dropped = dropped(&profile.counters());
        let unplaced = dropped as f64 / judged_against(dropped, profile).max(1) as f64;
        Some(HeapTable {
            whole: heap.total(),
            by_label,
            measure: info.measure,
            interval_bytes: info.interval_bytes,
            unplaced: if unplaced > NOTABLE { unplaced } else { 0.0 },
        })
    }

    pub(super) fn row(&self, label: LabelId) -> RowAmounts {
        self.by_label.get(&label).copied().unwrap_or_default()
    }

    /// The share of a part of all allocations.
    pub(super) fn share(&self, part: &Amounts) -> Interval {
        let least = least_weight(self.measure, self.interval_bytes);
        let part = part.of(self.measure);
        let found = part.share_of(self.whole.of(self.measure), least);
        // At worst all that has no stack belongs elsewhere, or here.
        Interval {
            share: found.share,
            low: found.low * (1.0 - self.unplaced),
            high: found.high + (1.0 - found.high) * self.unplaced,
        }
    }
}

/// What a sample at least stands for.
fn least_weight(measure: Measure, interval_bytes: u64) -> f64 {
    match measure {
        Measure::Bytes => interval_bytes as f64,
        Measure::Objects => 0.0,
    }
}

/// Sampled allocations that have no stack, or are not followed: what was counted and given up has
/// no stack any more.
fn dropped(c: &Counters) -> u64 {
    c.overflow.saturating_add(c.lost).saturating_add(c.aged)
}

/// Of so many dropped samples, the number that they are judged against. In mode live that is what
/// is held, since all of them may still be held too: beside all samples, most of which are freed
/// soon, they would seem few.
pub(crate) fn judged_against(dropped: u64, profile: &Profile) -> u64 {
    match &profile.heap {
        Some(heap) if profile.recording().mode == Mode::Live => {
            dropped.saturating_add(heap.total().samples)
        }
        _ => profile.counters().ticks,
    }
}

/// Whether more may be held than the intervals say, because samples were dropped.
pub fn is_lower_bound(profile: &Profile) -> bool {
    let dropped = dropped(&profile.counters());
    profile.recording().mode == Mode::Live && notable(dropped, judged_against(dropped, profile))
}

/// What follows the total in the table's title.
pub(super) fn title(profile: &Profile) -> String {
    format!(
        " {}, {}; 95 % intervals",
        match profile.recording().mode {
            Mode::Live => "still held",
            _ => "allocated",
        },
        estimated_from(profile)
    )
}

/// From how many samples the sums are estimated, in words.
pub(crate) fn estimated_from(profile: &Profile) -> String {
    match profile.heap.as_ref().map_or(0, |heap| heap.total().samples) {
        1 => "estimated from 1 sample".to_owned(),
        samples => format!("estimated from {} samples", grouped(samples)),
    }
}

/// The columns of figures with their widths, 0 for those that are left out, and the columns of a name
/// behind them.
pub(super) fn heads(
    report: &Report<'_>,
    unit: Unit,
) -> ([(&'static str, usize); 9], Option<usize>) {
    let is_live = report.symbolized.profile().recording().mode == Mode::Live;
    let other = match unit {
        Unit::Objects => "bytes",
        _ => "objects",
    };
    let mut heads = [
        ("self", 10),
        ("share", 9),
        ("interval", 14),
        ("total", 12),
        ("share", 9),
        ("interval", 14),
        (other, 12),
        ("mean size", 12),
        ("age", if is_live { 10 } else { 0 }),
    ];
    // JSON has them all.
    const FIRST_TO_GO: [usize; 7] = [2, 1, 7, 6, 8, 5, 0];
    let columns = report.options.columns;
    let begin = |heads: &[(&str, usize)]| heads.iter().map(|(_, width)| width).sum::<usize>() + 2;
    for (gone, at) in FIRST_TO_GO.into_iter().enumerate() {
        let least = if gone < 2 { NAME_COLUMNS } else { LEAST_NAME };
        if columns.is_none_or(|all| all >= begin(&heads) + least) {
            break;
        }
        heads[at].1 = 0;
    }
    (heads, columns.map(|all| all.saturating_sub(begin(&heads))))
}

/// The rows of the table of functions.
pub(super) fn write_rows(
    rows: &Rows<'_>,
    table: &FunctionTable,
    out: &mut impl Write,
) -> io::Result<()> {
    let report = rows.report;
    let heading = if report.options.lines { "line" } else { "function" };
    let (heads, columns) = heads(report, table.unit);
    let line = |cells: [&str; 9]| -> String {
        let shown = cells.into_iter().zip(&heads).filter(|(_, (_, width))| *width != 0);
        shown.map(|(cell, (_, width))| format!("{cell:>width$}")).collect()
    };
    let titles: Vec<&str> = heads.iter().map(|(title, _)| *title).collect();
    writeln!(out, "\n{}  {heading}", line(std::array::from_fn(|at| titles[at])))?;
    for (row, name) in rows.named(columns) {
        let amounts = row.heap.unwrap_or_default();
        let mean = amounts.total.mean_size();
        let age_ns = amounts.total.mean_age_ns();
        let cells = [
            amount(row.own, table.unit),
            percent(row.own_share.share),
            ends(&row.own_share, " - "),
            amount(row.total, table.unit),
            percent(row.total_share.share),
            ends(&row.total_share, " - "),
            match table.unit {
                Unit::Objects => amount(amounts.total.bytes.count(), Unit::Bytes),
                _ => grouped(amounts.total.objects.count()),
            },
            mean.map_or("-".to_owned(), |mean| size(mean.round() as u64)),
            age_ns.map_or("-".to_owned(), |age_ns| duration(two_figures(age_ns))),
        ];
        writeln!(out, "{}  {name}", line(cells.each_ref().map(String::as_str)))?;
    }
    Ok(())
}

/// An age in whole tenths of a second or, from ten seconds on, seconds.
fn two_figures(ns: u64) -> u64 {
    const TENTH: u64 = 100_000_000;
    match ns {
        ns if ns < TENTH => ns,
        ns if ns < 100 * TENTH => ns / TENTH * TENTH,
        ns => ns / (10 * TENTH) * (10 * TENTH),
    }
}

/// What became of the sampled allocations, and how their sum compares with the exact one.
pub(super) fn write_accounting(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    for line in accounting(profile) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The same as lines.
pub(super) fn accounting(profile: &Profile) -> Vec<String> {
    let Some(heap) = &profile.heap else {
        return Vec::new();
    };
    let (info, c) = (profile.recording(), profile.counters());
    let all = heap.total();
    let mut lines = vec![String::new(), "samples = recorded + aged + overflow + lost".to_owned()];
    let mut line = |name: &str, count: u64, what: &str| {
        let part = match name {
            "samples" => String::new(),
            _ => share(count, c.ticks),
        };
        lines.push(format!("{name:<10}  {:>10}  {part:>7}  {what}", grouped(count)));
    };
    line("samples", c.ticks, "sampled allocations");
    line("recorded", c.recorded, "counted with a stack");
    line("aged", c.aged, "counted, but dropped before it was fetched");
    line(
        "overflow",
        c.overflow,
        match info.mode {
            Mode::Live => "the table of live samples or of stacks was full",
            _ => "the stack table was full",
        },
    );
    line("lost", c.lost, "the stack table was in use");
    let vcpus = profile.vcpus().iter();
    let freed: u64 = vcpus.fold(0, |sum, vcpu| sum.saturating_add(vcpu.freed_samples));
    if info.mode == Mode::Live {
        line("held", all.samples, "still held at the end");
        line("freed", freed, "freed meanwhile, of all recordings of mode live");
    }
    lines.push(String::new());
    let bytes = all.bytes.bounds(info.interval_bytes as f64);
    let words = match info.mode {
        Mode::Live => "held",
        _ => "allocated",
    };
    let [value, low, high] = [bytes.value, bytes.low, bytes.high].map(|it| size(it as u64));
    let every = size(info.interval_bytes);
    let interval = match is_lower_bound(profile) {
        true => format!(
            "at least {low} by the samples, one every {every}; {} that were dropped may be held \
             too",
            grouped(dropped(&c))
        ),
        false => format!("{low} - {high} by the samples, one every {every}"),
    };
    lines.push(format!("{words:<10}  {value:>10}  {interval}"));
    if let Some(check) = ExactTotal::of(profile) {
        lines.push(match info.mode {
            Mode::Live => format!(
                "{:<10}  {:>10}  all that was allocated meanwhile, counted",
                "allocated",
                size(check.exact)
            ),
            _ => format!(
                "{:<10}  {:>10}  counted, an independent check: the samples say {} of it, {:.1} \
                 standard deviations apart",
                "exact",
                size(check.exact),
                percent(check.ratio),
                check.deviations
            ),
        });
    }
    lines
}

/// The sum of the samples beside all bytes that the agent counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExactTotal {
    pub(crate) exact: u64,
    /// The estimate, as a multiple of it.
    pub(crate) ratio: f64,
    /// How far they are apart, in standard deviations of the estimate.
    pub(crate) deviations: f64,
}

impl ExactTotal {
    /// `None` if the agent told none.
    pub(crate) fn of(profile: &Profile) -> Option<ExactTotal> {
        let heap = profile.heap.as_ref()?;
        let vcpus = profile.vcpus().iter();
        let exact = vcpus.fold(0, |sum: u64, vcpu| sum.saturating_add(vcpu.allocated_bytes));
        if exact == 0 {
            return None;
        }
        let bytes = heap.total().bytes;
        let apart = bytes.value() - exact as f64;
        // The first sample of an epoch stands for bytes of the one before: no finer than that.
        let grain = profile.recording().interval_bytes as f64;
        let deviation = bytes.deviation().max(grain);
        Some(ExactTotal {
            exact,
            ratio: bytes.value() / exact as f64,
            deviations: apart.abs() / deviation,
        })
    }
}

/// The guest's arenas at the end of the time shown, and what of them is explained.
pub(super) fn write_arenas(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let arenas = Arena::all(report);
    if arenas.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nmemory")?;
    for arena in &arenas {
        writeln!(out, "{}", arena.line())?;
    }
    let agent_bytes = report.symbolized.profile().recording().agent_memory_bytes;
    if agent_bytes != 0 {
        writeln!(out, "{:>10} given to the agent", size(agent_bytes))?;
    }
    if let Some(explained) = explained(report.symbolized.profile(), &arenas) {
        writeln!(
            out,
            "{:>10} of what is used is explained by what was allocated during the recording and is \
             still held",
            percent(explained)
        )?;
    }
    Ok(())
}

/// A part of the guest's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Arena {
    pub(crate) name: String,
    pub(crate) used: u64,
    pub(crate) size: Option<u64>,
}

impl Arena {
    /// Its line in the text.
    pub(super) fn line(&self) -> String {
        let Arena { name, used, size: room } = self;
        format!(
            "{:>10} used of {:>10}  {name}{}",
            size(*used),
            room.map_or("?".to_owned(), size),
            match room {
                Some(room) if room < used => "  (more than its size)",
                _ => "",
            }
        )
    }

    /// What the guest said last.
    pub(super) fn all(report: &Report<'_>) -> Vec<Arena> {
        let Some(view) = report.beside.as_ref().or(report.view.as_ref()) else {
            return Vec::new();
        };
        let window = view.timeline.bounded(&view.of, view.window);
        Arena::of(&view.timeline.counters(window))
    }

    pub(crate) fn of(counters: &[CounterSeries]) -> Vec<Arena> {
        let last = |series: &CounterSeries| u64::try_from(series.last()).unwrap_or(0);
        let size_of = |name: &str| {
            let wanted = format!("{name}.size");
            counters.iter().find(|series| series.name() == wanted).map(last)
        };
        counters
            .iter()
            .filter_map(|series| {
                let name = series.name().strip_suffix(".used")?;
                Some(Arena { name: name.to_owned(), used: last(series), size: size_of(name) })
            })
            .collect()
    }
}

/// The share of the used memory that live samples stand for; `None` of other recordings.
pub(crate) fn explained(profile: &Profile, arenas: &[Arena]) -> Option<f64> {
    let heap = profile.heap.as_ref()?;
    let used = arenas.iter().fold(0, |sum: u64, arena| sum.saturating_add(arena.used));
    let is_told = profile.recording().mode == Mode::Live && used != 0;
    is_told.then(|| heap.total().bytes.value() / used as f64)
}

/// The profile without the allocator's own functions at the inner ends of its stacks; `None` where
/// time was recorded.
pub(super) fn without_allocator(symbolized: &Symbolized<'_>) -> Option<Profile> {
    let profile = symbolized.profile();
    let heap = profile.heap.as_ref()?;
    let is_own: Vec<bool> = profile
        .frame_ids()
        .map(|frame| {
            let symbols = symbolized.frame(frame);
            let functions = symbols.iter().map(|symbol| symbolized.function(symbol.function));
            allocator_depth(functions) == symbols.len()
        })
        .collect();
    let is_agent: Vec<bool> = profile
        .frame_ids()
        .map(|frame| {
            let innermost = symbolized.frame(frame).first();
            innermost.is_some_and(|symbol| {
                symbolized.function(symbol.function).kind == FunctionKind::Agent
            })
        })
        .collect();
    let tree = profile.tree();
    let outside = |node: NodeId| {
        let mut at = node;
        while let Some(frame) = tree.item(at) {
            let caller = tree.parent(at).unwrap_or(NodeId::ROOT);
            // What the agent calls, such as a shim by the compiler in code that is not optimized,
            // is as its own.
            let is_called_by_agent =
                tree.item(caller).is_some_and(|frame| is_agent[frame as usize]);
            if !is_own[frame as usize] && !is_called_by_agent {
                break;
            }
            at = caller;
        }
        // A stack of nothing but the allocator stays as it is.
        if at == NodeId::ROOT { node } else { at }
    };
    let mut moved = profile.clone();
    moved.heap = Some(heap.moved(outside));
    moved.count_heap();
    Some(moved)
}

/// The names that pprof's users know from Go.
pub(super) fn pprof_types(mode: Mode) -> [(&'static str, &'static str); 2] {
    match mode {
        Mode::Live => [("inuse_objects", "count"), ("inuse_space", "bytes")],
        _ => [("alloc_objects", "count"), ("alloc_space", "bytes")],
    }
}

/// All allocations, for programs.
#[derive(Debug, Serialize)]
pub(super) struct JsonHeap {
    samples: u64,
    bytes: JsonBounds,
    objects: JsonBounds,
    /// Counted, and not sampled; `null` if the agent told none.
    allocated_bytes: Option<u64>,
    /// How far the estimate is from it, in standard deviations.
    deviations: Option<f64>,
    freed_samples: u64,
    arenas: Vec<Arena>,
    explained_share: Option<f64>,
}

#[derive(Debug, Serialize)]
struct JsonBounds {
    value: u64,
    /// The upper end is `null` if samples were dropped that may be held.
    interval: (u64, Option<u64>),
}

impl JsonBounds {
    fn of(estimate: &Estimate, least_weight: f64, is_lower_bound: bool) -> JsonBounds {
        let bounds = estimate.bounds(least_weight);
        let high = (!is_lower_bound).then_some(bounds.high as u64);
        JsonBounds { value: bounds.value as u64, interval: (bounds.low as u64, high) }
    }
}

/// `None` where time was recorded.
pub(super) fn json(report: &Report<'_>) -> Option<JsonHeap> {
    let profile = report.symbolized.profile();
    let all = profile.heap.as_ref()?.total();
    let interval_bytes = profile.recording().interval_bytes;
    let exact = ExactTotal::of(profile);
    let is_alloc = profile.recording().mode == Mode::Alloc;
    let arenas = Arena::all(report);
    let vcpus = profile.vcpus().iter();
    let bounds = |measure| {
        let least = least_weight(measure, interval_bytes);
        JsonBounds::of(all.of(measure), least, is_lower_bound(profile))
    };
    Some(JsonHeap {
        samples: all.samples,
        bytes: bounds(Measure::Bytes),
        objects: bounds(Measure::Objects),
        allocated_bytes: exact.map(|check| check.exact),
        deviations: exact.map(|check| check.deviations).filter(|_| is_alloc),
        freed_samples: vcpus.fold(0, |sum, vcpu| sum.saturating_add(vcpu.freed_samples)),
        explained_share: explained(profile, &arenas),
        arenas,
    })
}

/// What a reader of what is held must know.
pub fn warnings(profile: &Profile) -> Vec<String> {
    let mut all = Vec::new();
    warn(profile, &mut all);
    all
}

/// What the counters say.
pub(super) fn warn(profile: &Profile, all: &mut Vec<String>) {
    let (info, c) = (profile.recording(), profile.counters());
    let full = match info.mode {
        Mode::Live => "a table was full",
        _ => "the stack table was full",
    };
    for (count, why, advice) in [
        (c.aged, "memory was full", "give the agent more memory, or fetch more often"),
        (c.overflow, full, "give the agent more memory, or a larger --every"),
        (c.lost, "the stack table was in use", "use a larger --every"),
    ] {
        // In mode live the three are judged together, so that whatever makes the intervals lower
        // bounds is named.
        let is_notable = match info.mode {
            Mode::Live => count != 0 && is_lower_bound(profile),
            _ => notable(count, judged_against(count, profile)),
        };
        if !is_notable {
            continue;
        }
        all.push(match &profile.heap {
            Some(heap) if info.mode == Mode::Live => format!(
                "{} sampled allocations are not followed, beside {} that are held: {why}; {advice}",
                grouped(count),
                grouped(heap.total().samples)
            ),
            _ => format!(
                "{} of the sampled allocations ({}) are in no stack: {why}; {advice}",
                share(count, c.ticks),
                grouped(count)
            ),
        });
    }
    let vcpus = profile.vcpus().iter();
    let freed: u64 = vcpus.fold(0, |sum, vcpu| sum.saturating_add(vcpu.freed_samples));
    if info.mode == Mode::Live && freed == 0 && c.recorded >= MANY {
        all.push(format!(
            "none of {} sampled allocations was freed: frees seem not to be reported, so that all \
             of them seem to be held",
            grouped(c.recorded)
        ));
    }
    if let Some(check) = ExactTotal::of(profile).filter(|_| info.mode == Mode::Alloc)
        && check.deviations >= FAR
    {
        all.push(format!(
            "the samples say {} of the {} that the agent counted, {:.0} standard deviations apart",
            percent(check.ratio),
            size(check.exact),
            check.deviations
        ));
    }
}

/// The name and the unit of one measure.
pub(super) fn heap_type(info: &RecordingInfo) -> (&'static str, &'static str) {
    let [objects, bytes] = pprof_types(info.mode);
    match info.measure {
        Measure::Objects => objects,
        Measure::Bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use unikprof_profile::profile::{Frame, FrameId, ProfileBuilder};
    use unikprof_profile::symbols::{Names, Symbol};

    /// The innermost function that is left of a stack with so many functions in each frame, inlined
    /// into each other.
    fn innermost(functions: &[&str], per_frame: usize) -> String {
        let mut builder = ProfileBuilder::new();
        builder.set_recording(RecordingInfo { mode: Mode::Alloc, ..RecordingInfo::default() });
        let frames = functions.len().div_ceil(per_frame);
        let node = (0..frames).rev().fold(NodeId::ROOT, |node, at| {
            let frame = Frame::caller(0x10 + at as u64);
            builder.step(node, frame).unwrap()
        });
        builder.count_allocations(0, node, 1, 100, 1000);
        let profile = builder.finish();
        let mut names = Names::new(frames, 0);
        for (at, frame) in profile.frames().iter().enumerate() {
            let Frame::Address { address, .. } = *frame else {
                panic!("{frame:?}");
            };
            let mut of_frames = functions.chunks(per_frame);
            let inlined = of_frames.nth((address - 0x10) as usize).unwrap();
            let begin = names.begin();
            for (depth, name) in inlined.iter().enumerate() {
                let function = names.function(None, name);
                names.push(Symbol {
                    function,
                    file: None,
                    line: None,
                    inlined: depth + 1 < inlined.len(),
                });
            }
            names.assign(FrameId(at as u32), begin);
        }
        let symbolized = names.finish(&profile, vec![None; frames]);
        let trimmed = without_allocator(&symbolized).unwrap();
        let symbolized = symbolized.of_window(&trimmed);
        let sample = trimmed.samples()[0];
        let frame = trimmed.stack(sample.node).next().unwrap();
        let symbol = &symbolized.frame(frame)[0];
        symbolized.function(symbol.function).name.clone()
    }

    /// Guests that are not optimized, and those whose inlined functions are known, have the agent's
    /// call of a closure inside its own functions.
    #[test]
    fn what_the_agent_calls_did_not_ask_for_the_allocation() {
        let functions = [
            "unikprof_agent::ground::platform::Registers::here",
            "core::ops::function::FnOnce::call_once",
            "unikprof_agent::heap::Agent::on_alloc",
            "__rustc::__rust_alloc",
            "<alloc::alloc::Global>::alloc_impl_runtime",
            "alloc::raw_vec::RawVecInner<A>::try_allocate_in",
            "guest::leak",
            "guest::main",
        ];
        for per_frame in 1..=functions.len() {
            for from in 0..6 {
                let found = innermost(&functions[from..], per_frame);
                assert_eq!(found, "guest::leak", "from {from}, {per_frame} in a frame");
            }
            let other = ["core::ops::function::FnOnce::call_once", "guest::main"];
            assert_eq!(innermost(&other, per_frame), other[0]);
        }
    }

    #[test]
    fn what_tells_the_agent_of_blocks_of_ocaml_did_not_ask_for_them() {
        let functions = [
            "unikprof_on_sampled_alloc",
            "unikprof_ml_on_sampled_alloc",
            "Unikprof.allocated",
            "caml_start_program",
            "caml_callback_exn",
            "run_alloc_callback_exn",
            "caml_memprof_track_young",
            "caml_alloc_small_dispatch",
            "caml_garbage_collection",
            "caml_call_gc",
            "Dune.exe.Guest.cells",
            "caml_start_program",
        ];
        assert_eq!(innermost(&functions, 1), "Dune.exe.Guest.cells");
    }
}
