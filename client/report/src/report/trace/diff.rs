//! What differs between two traces: how often functions were called, how long their calls took, and
//! what of it is more than chance.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Value, json};

use super::table::{Row as Line, Table};
use super::view::{Row, TraceView};
use crate::diff::statistics::{self, Factor, LEAST_BLOCKS, LEVEL, Rate};
use crate::diff::text::interval_of;
use crate::finding::write_wrapped;
use unikprof_profile::trace::End;
use unikprof_profile::units::{duration, grouped};

/// The equal parts of a trace whose differences say what chance does.
const BLOCKS: usize = 40;

/// Two traces, function by function.
pub struct TraceDiff {
    /// Those with the largest change of their own time first.
    rows: Vec<DiffRow>,
    lengths_ns: [u64; 2],
    /// Why there are no intervals.
    without: Option<String>,
}

/// A function in both traces; `None` where it was not traced.
#[derive(Default)]
struct DiffRow {
    name: String,
    sides: [Option<Side>; 2],
    /// Of calls in a second.
    calls: Changed,
    /// Of the own time of a call.
    own: Changed,
}

/// A change, as far as it is known what chance does.
#[derive(Default)]
struct Changed {
    factor: Option<Factor>,
    chance: Option<f64>,
    /// It is more than chance, with at most [`LEVEL`] of such results being wrong.
    is_found: bool,
}

/// A function in one trace.
#[derive(Default)]
struct Side {
    calls: u64,
    total_ns: u64,
    /// Its own, while its vCPU ran.
    self_ns: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    seconds: f64,
    /// The agent removed its probes, so its counts end early.
    is_removed: bool,
    /// It calls a function whose probes the agent removed in one of the traces: from then on that
    /// one's time is its own.
    calls_removed: bool,
    /// By block: the calls that began in it and have ended, and their own time in ns.
    blocks: Vec<[f64; 2]>,
}

impl TraceDiff {
    /// Compares two traces by the names of their functions.
    pub fn of(views: &[TraceView<'_>; 2]) -> TraceDiff {
        let [base, new] = views;
        let without = lacks("BASE", base).or_else(|| lacks("NEW", new));
        let removed: BTreeSet<String> = views.iter().flat_map(removed).collect();
        let mut by_name: BTreeMap<String, [Option<Side>; 2]> = BTreeMap::new();
        for (at, view) in views.iter().enumerate() {
            for (name, side) in sides(view, without.is_none(), &removed) {
                by_name.entry(name).or_default()[at] = Some(side);
            }
        }
        let mut rows: Vec<DiffRow> = by_name
            .into_iter()
            .filter(|(_, sides)| sides.iter().flatten().any(|side| side.calls > 0))
            .map(|(name, sides)| DiffRow::of(name, sides))
            .collect();
        judge(&mut rows);
        rows.sort_by(|a, b| b.change().total_cmp(&a.change()).then_with(|| a.name.cmp(&b.name)));
        TraceDiff { rows, lengths_ns: [base, new].map(length_ns), without }
    }

    /// A table: each column has the value before and the one after.
    pub fn write(&self, top: usize, columns: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        write_wrapped(columns, out, |out| self.write_lines(top, columns, out))
    }

    fn write_lines(
        &self,
        top: usize,
        columns: Option<usize>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let [base, new] = self.lengths_ns.map(duration);
        writeln!(
            out,
            "two traces, of {base} and {new}: calls in a second, and the mean own time of a call \
             while its vCPU ran"
        )?;
        match &self.without {
            Some(why) => writeln!(out, "warning: what is chance is not known, since {why}\n")?,
            None => writeln!(
                out,
                "changes are 95 % intervals; at most 5 % of the words after names are chance, and \
                 `-` was called too seldom to tell, or the agent removed probes\n"
            )?,
        }
        let shown = if top == 0 { self.rows.len() } else { top.min(self.rows.len()) };
        let some = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
        let line = |row: &DiffRow| {
            let pair = |of: &dyn Fn(&Side) -> String| {
                let [base, new] = row.sides.each_ref();
                let [base, new] = [base, new].map(|it| it.as_ref().map_or("-".into(), of));
                format!("{base} → {new}")
            };
            Line {
                cells: vec![
                    pair(&|side| {
                        let rate = side.in_second(side.calls);
                        rate.map_or("-".into(), |rate| grouped(rate.round() as u64))
                    }),
                    interval_of(row.calls.factor),
                    pair(&|side| some(side.self_ns.checked_div(side.calls))),
                    interval_of(row.own.factor),
                    pair(&|side| some(side.p50_ns)),
                    pair(&|side| some(side.p99_ns)),
                ],
                name: row.name.clone(),
                note: row.note(),
            }
        };
        let table = Table {
            head: vec!["calls/s", "change", "self", "change", "p50", "p99"],
            names: "function",
            rows: self.rows[..shown].iter().map(line).collect(),
            spare: &[5, 4, 0],
        };
        table.write(columns, out)?;
        if shown < self.rows.len() {
            let more = (self.rows.len() - shown) as u64;
            writeln!(out, "{} more functions; --top 0 lists all", grouped(more))?;
        }
        Ok(())
    }

    /// Writes it as JSON.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let side = |side: &Option<Side>| -> Value {
            side.as_ref().map_or(Value::Null, |side| {
                json!({
                    "calls": side.calls,
                    "calls_per_second": side.in_second(side.calls),
                    "total_ns_per_second": side.in_second(side.total_ns),
                    "self_ns_per_second": side.in_second(side.self_ns),
                    "p50_ns": side.p50_ns,
                    "p99_ns": side.p99_ns,
                    "removed": side.is_removed,
                })
            })
        };
        let changed = |it: &Changed| -> Value {
            it.factor.map_or(Value::Null, |factor| {
                // What is infinite is written as `null`: a function that is new has no upper bound.
                json!({
                    "factor": factor.factor,
                    "low": factor.low,
                    "high": factor.high,
                    "significant": it.is_found,
                })
            })
        };
        let rows = self.rows.iter().map(|row| {
            json!({
                "function": row.name,
                "base": side(&row.sides[0]),
                "new": side(&row.sides[1]),
                "calls_change": changed(&row.calls),
                "self_per_call_change": changed(&row.own),
            })
        });
        let [base_ns, new_ns] = self.lengths_ns;
        let all = json!({
            "base_ns": base_ns,
            "new_ns": new_ns,
            "no_intervals": self.without,
            "functions": rows.collect::<Vec<_>>(),
        });
        writeln!(out, "{all}")
    }
}

fn length_ns(view: &TraceView<'_>) -> u64 {
    let (from_ns, to_ns) = view.trace.extent();
    to_ns.saturating_sub(from_ns)
}

/// Why the single calls of a trace do not tell what chance does.
fn lacks(name: &str, view: &TraceView<'_>) -> Option<String> {
    let why = match &view.calls {
        None => "keeps no single calls (--count)",
        Some(_) if view.trace.order.slow_ns > 0 => "keeps slow calls only (--slow)",
        Some(calls) if !calls.holes.is_empty() => "has lost records of calls",
        Some(_) => return None,
    };
    Some(format!("{name} {why}"))
}

/// The names of the functions whose probes the agent removed, perhaps before it counted.
fn removed(view: &TraceView<'_>) -> Vec<String> {
    let functions = view.trace.functions.iter().enumerate();
    let removed = functions.filter(|(_, function)| function.is_removed());
    removed.map(|(at, _)| view.name(at)).collect()
}

/// The functions of a trace by name; several may have one. The probes of those in `removed` were
/// removed in one of the traces.
fn sides(
    view: &TraceView<'_>,
    has_blocks: bool,
    removed: &BTreeSet<String>,
) -> BTreeMap<String, Side> {
    let functions = &view.trace.functions;
    let names = (0..functions.len()).map(|at| view.name(at));
    let names: Vec<String> = names.collect();
    let mut rows: Vec<Row> = Vec::new();
    rows.resize_with(functions.len(), Row::default);
    for row in view.rows() {
        let at = row.function;
        rows[at] = row;
    }
    let mut blocks = vec![[[0.0; 2]; BLOCKS]; functions.len()];
    let mut call_removed = vec![false; functions.len()];
    if let Some(calls) = view.calls.as_ref().filter(|_| has_blocks) {
        let inside_ns = view.inside_ns(calls);
        for (at, call) in calls.all.iter().enumerate() {
            if let Some(parent) = call.parent
                && removed.contains(&names[usize::from(call.function)])
            {
                call_removed[usize::from(calls.all[parent].function)] = true;
            }
            let is_ended = !matches!(call.end, End::Open | End::Lost);
            if is_ended && view.is_shown(calls, at) {
                let bin = view.bin(call.start_ns, BLOCKS);
                let [number, own_ns] = &mut blocks[usize::from(call.function)][bin];
                *number += 1.0;
                let own = call.duration_ns().saturating_sub(inside_ns[at]);
                *own_ns += own.saturating_sub(call.waited_ns) as f64;
            }
        }
    }
    let mut sides: BTreeMap<String, Side> = BTreeMap::new();
    for (at, (row, blocks)) in rows.iter().zip(blocks).enumerate() {
        if functions[at].refused.is_some() {
            continue;
        }
        let side = sides.entry(names[at].clone()).or_default();
        side.seconds = length_ns(view).max(1) as f64 / 1e9;
        side.calls = side.calls.saturating_add(row.calls);
        side.total_ns = side.total_ns.saturating_add(row.total_ns);
        let own_ns = row.self_ns.saturating_sub(row.waited_ns);
        side.self_ns = side.self_ns.saturating_add(own_ns);
        side.p50_ns = side.p50_ns.max(row.p50_ns);
        side.p99_ns = side.p99_ns.max(row.p99_ns);
        side.is_removed |= functions[at].is_removed();
        side.calls_removed |= call_removed[at];
        side.blocks.resize(BLOCKS, [0.0; 2]);
        for (sum, [number, own_ns]) in side.blocks.iter_mut().zip(blocks) {
            sum[0] += number;
            sum[1] += own_ns;
        }
    }
    sides
}

/// Marks what is more than chance among all changes.
fn judge(rows: &mut [DiffRow]) {
    let changes = |row: &DiffRow| [row.calls.chance, row.own.chance];
    let chances: Vec<Option<f64>> = rows.iter().flat_map(changes).collect();
    let wrong = statistics::false_discoveries(&chances);
    let is_found = |share: &Option<f64>| share.is_some_and(|share| share <= LEVEL);
    for (row, wrong) in rows.iter_mut().zip(wrong.chunks_exact(2)) {
        row.calls.is_found = is_found(&wrong[0]);
        row.own.is_found = is_found(&wrong[1]);
    }
}

impl Changed {
    fn of(rates: Option<[Rate; 2]>) -> Changed {
        let Some([base, new]) = rates else {
            return Changed::default();
        };
        Changed {
            factor: statistics::factor(&base, &new),
            chance: Some(statistics::chance(&base, &new)),
            is_found: false,
        }
    }
}

impl DiffRow {
    fn of(name: String, sides: [Option<Side>; 2]) -> DiffRow {
        let [base, new] = sides.each_ref().map(Option::as_ref);
        let both = base.zip(new).map(|(base, new)| [base, new]);
        let counted = both.filter(|both| both.iter().all(|it| it.is_known(true)));
        let timed = both.filter(|both| both.iter().all(|it| it.is_known(false)));
        DiffRow {
            calls: Changed::of(counted.map(|both| both.map(Side::calls_rate))),
            own: Changed::of(timed.map(|both| both.map(Side::own_rate))),
            name,
            sides,
        }
    }

    /// How much more or less own time it takes in a second.
    fn change(&self) -> f64 {
        let own = |side: &Side| side.in_second(side.self_ns);
        let [base, new] = self.sides.each_ref();
        let [base, new] = [base, new].map(|side| side.as_ref().and_then(own).unwrap_or(0.0));
        (new - base).abs()
    }

    /// What is more than chance, and why counts end early.
    fn note(&self) -> String {
        let found = [(&self.own, "slower", "faster"), (&self.calls, "more calls", "fewer calls")];
        let found = found.into_iter().filter(|(changed, ..)| changed.is_found);
        let words = found.filter_map(|(changed, more, less)| {
            let factor = changed.factor?.factor;
            Some(if factor > 1.0 { more } else { less })
        });
        let sides = self.sides.iter().zip(["removed in BASE", "removed in NEW"]);
        let removed = sides.filter(|(side, _)| side.as_ref().is_some_and(|it| it.is_removed));
        let words = words.chain(removed.map(|(_, word)| word));
        let words: Vec<&str> = words.collect();
        match words.is_empty() {
            true => String::new(),
            false => format!("  ({})", words.join(", ")),
        }
    }
}

impl Side {
    /// How much of a count is in a second; `None` if it ends early.
    fn in_second(&self, count: u64) -> Option<f64> {
        (!self.is_removed).then_some(count as f64 / self.seconds)
    }

    /// Whether its blocks tell what chance does to its calls, or to their own time; those of a
    /// function that was not called at all tell so of `calls`.
    fn is_known(&self, calls: bool) -> bool {
        if calls && self.is_removed || !calls && self.calls_removed {
            return false;
        }
        let hit = self.blocks.iter().filter(|[calls, _]| *calls > 0.0).count();
        hit >= LEAST_BLOCKS || (calls && self.calls == 0)
    }

    fn calls_rate(&self) -> Rate {
        let hits: Vec<_> = self.blocks.iter().map(|it| it[0]).enumerate().collect();
        Rate::of_blocks(&hits, &[self.seconds / BLOCKS as f64; BLOCKS])
    }

    /// Its own time for each call.
    fn own_rate(&self) -> Rate {
        let hits: Vec<_> = self.blocks.iter().map(|it| it[1]).enumerate().collect();
        let calls: Vec<f64> = self.blocks.iter().map(|it| it[0]).collect();
        Rate::of_blocks(&hits, &calls)
    }
}
