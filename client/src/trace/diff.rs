//! What differs between two traces: how often functions were called, and how long their calls took.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::data::{Trace, TracedFunction};
use crate::printable::Printable;
use crate::units::{duration, grouped};

/// Two traces, function by function.
pub(crate) struct TraceDiff {
    /// Those with the largest change of time first.
    rows: Vec<DiffRow>,
    lengths_ns: [u64; 2],
}

/// A function in both traces; `None` where it was not traced.
struct DiffRow {
    name: String,
    sides: [Option<Side>; 2],
}

/// A function in one trace.
#[derive(Clone, Copy)]
struct Side {
    calls: u64,
    /// In a second.
    rate: f64,
    /// With the functions that it calls, in a second of the trace.
    total_ns: f64,
    self_ns: f64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
}

impl TraceDiff {
    /// Compares two traces by the names of their functions.
    pub(crate) fn of(base: &Trace, new: &Trace) -> TraceDiff {
        let traces = [base, new];
        let lengths_ns = traces.map(|trace| {
            let (from_ns, to_ns) = trace.extent();
            to_ns.saturating_sub(from_ns)
        });
        let mut by_name: BTreeMap<&str, [Option<Side>; 2]> = BTreeMap::new();
        for (at, (trace, length_ns)) in traces.into_iter().zip(lengths_ns).enumerate() {
            for function in trace.functions.iter().filter(|it| it.refused.is_none()) {
                let side = Side::of(function, length_ns);
                let sides = by_name.entry(&function.name).or_default();
                // Several functions may have one name.
                sides[at] = Some(sides[at].map_or(side, |known| known.plus(side)));
            }
        }
        let mut rows: Vec<DiffRow> = by_name
            .into_iter()
            .map(|(name, sides)| DiffRow {
                name: Printable(name).to_string(),
                sides,
            })
            .filter(|row| row.sides.iter().flatten().any(|side| side.calls > 0))
            .collect();
        rows.sort_by(|a, b| {
            b.change()
                .total_cmp(&a.change())
                .then_with(|| a.name.cmp(&b.name))
        });
        TraceDiff { rows, lengths_ns }
    }

    /// A table: each column has the value before and the one after.
    pub(crate) fn write(&self, top: usize, out: &mut dyn Write) -> io::Result<()> {
        let [base, new] = self.lengths_ns.map(duration);
        writeln!(
            out,
            "two traces, of {base} and {new}; rates are calls in a second, times are in a second of the trace\n"
        )?;
        writeln!(
            out,
            "{:>21} {:>21} {:>21} {:>19} {:>19}  function",
            "calls/s", "total", "self", "p50", "p99"
        )?;
        let shown = if top == 0 {
            self.rows.len()
        } else {
            top.min(self.rows.len())
        };
        for row in &self.rows[..shown] {
            let pair = |of: &dyn Fn(&Side) -> String| {
                let [base, new] = row.sides.map(|side| side.as_ref().map_or("-".into(), of));
                format!("{base} → {new}")
            };
            let some = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
            writeln!(
                out,
                "{:>21} {:>21} {:>21} {:>19} {:>19}  {}",
                pair(&|side| grouped(side.rate.round() as u64)),
                pair(&|side| duration(side.total_ns as u64)),
                pair(&|side| duration(side.self_ns as u64)),
                pair(&|side| some(side.p50_ns)),
                pair(&|side| some(side.p99_ns)),
                row.name
            )?;
        }
        if shown < self.rows.len() {
            let more = (self.rows.len() - shown) as u64;
            writeln!(out, "{} more functions; --top 0 lists all", grouped(more))?;
        }
        Ok(())
    }

    pub(crate) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let side = |side: &Option<Side>| -> Value {
            side.as_ref().map_or(Value::Null, |side| {
                json!({
                    "calls": side.calls,
                    "calls_per_second": side.rate,
                    "total_ns_per_second": side.total_ns,
                    "self_ns_per_second": side.self_ns,
                    "p50_ns": side.p50_ns,
                    "p99_ns": side.p99_ns,
                })
            })
        };
        let rows = self.rows.iter().map(|row| {
            json!({"function": row.name, "base": side(&row.sides[0]), "new": side(&row.sides[1])})
        });
        let [base_ns, new_ns] = self.lengths_ns;
        let all = json!({
            "base_ns": base_ns,
            "new_ns": new_ns,
            "functions": rows.collect::<Vec<_>>(),
        });
        writeln!(out, "{all}")
    }
}

impl DiffRow {
    /// How much more or less time it takes in a second.
    fn change(&self) -> f64 {
        let [base, new] = self
            .sides
            .map(|side| side.map_or(0.0, |side| side.total_ns));
        (new - base).abs()
    }
}

impl Side {
    fn of(function: &TracedFunction, length_ns: u64) -> Side {
        let seconds = length_ns.max(1) as f64 / 1e9;
        let totals = &function.totals;
        Side {
            calls: totals.calls,
            rate: totals.calls as f64 / seconds,
            total_ns: totals.total_ns as f64 / seconds,
            self_ns: totals.self_ns as f64 / seconds,
            p50_ns: function.quantile(500),
            p99_ns: function.quantile(990),
        }
    }

    /// Both together; the quantiles are the larger ones.
    fn plus(self, other: Side) -> Side {
        Side {
            calls: self.calls.saturating_add(other.calls),
            rate: self.rate + other.rate,
            total_ns: self.total_ns + other.total_ns,
            self_ns: self.self_ns + other.self_ns,
            p50_ns: self.p50_ns.max(other.p50_ns),
            p99_ns: self.p99_ns.max(other.p99_ns),
        }
    }
}
