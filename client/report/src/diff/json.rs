//! A comparison as JSON.
//!
//! One object; its fields follow the same rules as those of a report. Values are shares of the time
//! between 0 and 1, or with `per` ns for each unit of work. Factors are `null` if they are
//! infinite: the function is new.
//!
//! ```json
//! {
//!   "schema": 1,
//!   "base": { "file": "old.unikprof", "guest_name": "web", "recording": "flight", "elapsed_ns": 30000000000,
//!             "counted": 29000, "blocks": 40, "work": 1200 },
//!   "new": {},
//!   "unit": "samples", "per": "request", "basis": "blocks",
//!   "total": { "base": 1000000, "new": 1100000, "factor": 1.1, "interval": [1.05, 1.15] },
//!   "tested": 31, "changed": 2,
//!   "smallest": { "function": "hash", "slowdown": 0.032, "times_longer_for_1_percent": 10.2 },
//!   "functions": [{
//!     "name": "hash", "verdict": "slower",
//!     "self": { "base": 100000, "new": 150000, "factor": 1.5, "interval": [1.42, 1.58] },
//!     "total": { "base": 100000, "new": 150000, "factor": 1.5, "interval": [1.42, 1.58] },
//!     "chance": 0.0001, "false_discoveries": 0.003,
//!     "cause": { "factor": 1.5, "interval": [1.42, 1.58], "moved": [],
//!                "or": [], "times_longer": null },
//!     "smallest_slowdown": 0.032, "power": [0.97, 1.0, 1.0]
//!   }],
//!   "warnings": ["..."]
//! }
//! ```
//!
//! - `basis` is `blocks` if samples were compared in blocks of time, else `counts`: then `blocks`
//!   is 0, samples are taken as independent, and `verdict` says `maybe` at most.
//! - `work` is `null` without `per`, and so is `total`: all time for each unit of work.
//! - `verdict` is `slower`, `faster`, `new`, `gone` or `moved` for a function in the cause, `either`
//!   if another one explains the change about as well,
//!   `carries` if only callees in the cause changed its total, `share` if only its share changed
//!   because others took more or less time; else empty.
//! - `chance` is that of such a difference of its own time if nothing changed, `null` if the
//!   function occurs too seldom to tell; `false_discoveries` is the least share of wrong ones among
//!   all functions that are as sure.
//! - `cause` is `null` for functions outside of it. Its factor holds if all functions outside of
//!   the cause are unchanged. `moved` names functions of the cause that have less or more by as
//!   much, `or` those that may be the cause instead; recordings `times_longer` tell which with a
//!   probability of 80 % (`null`: by shares none would).
//! - `smallest_slowdown` would be found with a probability of 80 %; `power` are the probabilities
//!   of finding slow-downs by 5, 10 and 50 %.

use std::io::{self, Write};

use serde::Serialize;

use super::statistics::Factor;
use super::text::verdict;
use super::{Change, Comparison, Role};
use crate::report::json::SCHEMA;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    base: Side<'a>,
    new: Side<'a>,
    unit: String,
    per: Option<&'a str>,
    basis: &'static str,
    total: Option<JsonChange>,
    tested: usize,
    changed: usize,
    smallest: Option<Smallest<'a>>,
    functions: Vec<JsonFunction<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Side<'a> {
    file: &'a str,
    guest_name: &'a str,
    recording: &'a str,
    elapsed_ns: u64,
    counted: u64,
    blocks: usize,
    work: Option<f64>,
}

#[derive(Serialize)]
struct Smallest<'a> {
    function: &'a str,
    slowdown: f64,
    times_longer_for_1_percent: Option<f64>,
}

#[derive(Serialize)]
struct JsonFunction<'a> {
    name: &'a str,
    verdict: &'static str,
    #[serde(rename = "self")]
    own: JsonChange,
    total: JsonChange,
    chance: Option<f64>,
    false_discoveries: Option<f64>,
    cause: Option<JsonCause<'a>>,
    smallest_slowdown: Option<f64>,
    power: Option<[f64; 3]>,
}

#[derive(Serialize)]
struct JsonChange {
    base: f64,
    new: f64,
    #[serde(flatten)]
    factor: JsonFactor,
}

/// `serde_json` writes what is infinite as `null`.
#[derive(Serialize)]
struct JsonFactor {
    factor: Option<f64>,
    interval: Option<[f64; 2]>,
}

#[derive(Serialize)]
struct JsonCause<'a> {
    #[serde(flatten)]
    factor: JsonFactor,
    moved: &'a [String],
    or: Vec<&'a str>,
    times_longer: Option<f64>,
}

impl JsonFactor {
    fn of(factor: Option<Factor>) -> JsonFactor {
        JsonFactor {
            factor: factor.map(|it| it.factor),
            interval: factor.map(|it| [it.low, it.high]),
        }
    }
}

impl JsonChange {
    fn of(change: &Change) -> JsonChange {
        JsonChange { base: change.base, new: change.new, factor: JsonFactor::of(change.factor) }
    }
}

pub(super) fn write(of: &Comparison<'_>, out: &mut impl Write) -> io::Result<()> {
    let side = |at: usize| {
        let info = of.inputs[at].info();
        Side {
            file: of.inputs[at].title,
            guest_name: &info.guest_name,
            recording: &info.name,
            elapsed_ns: info.elapsed_ns,
            counted: of.counted[at],
            blocks: of.blocks.map_or(0, |blocks| blocks[at]),
            work: of.work.map(|work| work[at]),
        }
    };
    let functions = of.functions.iter().map(|function| JsonFunction {
        name: &function.name,
        verdict: verdict(of, function),
        own: JsonChange::of(&function.own),
        total: JsonChange::of(&function.total),
        chance: function.chance,
        false_discoveries: function.false_discoveries,
        cause: match &function.role {
            Some(Role::Cause(factor)) => Some((factor, &[][..], None)),
            Some(Role::Moved { factor, others }) => Some((factor, &others[..], None)),
            Some(Role::Either(either)) => Some((&either.factor, &[][..], Some(either))),
            _ => None,
        }
        .map(|(factor, moved, either)| JsonCause {
            factor: JsonFactor::of(*factor),
            moved,
            or: function.or(),
            times_longer: either.map(|it| it.times_longer),
        }),
        smallest_slowdown: function.least(),
        power: function.sight.map(|sight| [0.05, 0.1, 0.5].map(|slowdown| sight.power(slowdown))),
    });
    let document = Document {
        schema: SCHEMA,
        base: side(0),
        new: side(1),
        unit: of.inputs[0].info().unit().to_string(),
        per: of.per.as_deref(),
        basis: of.basis(),
        total: of.total.as_ref().map(JsonChange::of),
        tested: of.tested,
        changed: of.functions.iter().filter(|f| f.is_changed()).count(),
        smallest: of.finest().map(|(slowdown, function)| Smallest {
            function: &function.name,
            slowdown,
            times_longer_for_1_percent: function.sight.map(|sight| sight.times_longer(0.01)),
        }),
        functions: functions.collect(),
        warnings: of.warnings(),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}
