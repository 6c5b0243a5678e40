//! Case 2: the callers of leaf functions.
//!
//! Samples of loads that spend their time where a frame pointer does not tell the caller are
//! captured with their stacks; the agent's walk and full unwind tables are asked for the caller of
//! each.

use anyhow::Result;
use unikprof_accuracy_loads::leaves::LOADS;

use super::guest::Guest;
use super::judge::{Agreement, Extent, Judge, Way};
use super::row::{Row, Verdict, percent};

/// The part of the samples whose caller must be right with the table.
pub const GOAL: f64 = 0.99;

/// The result for one load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    pub(crate) load: &'static str,
    /// Agreement along frame pointers alone.
    pub naive: Agreement,
    /// Agreement with a look at the instructions.
    pub bytes: Agreement,
    /// Agreement with the caller table.
    pub table: Agreement,
    /// Agreement with the caller table for every frame.
    pub every_frame: Agreement,
    /// The caller that was wrong most often with the table, if any.
    pub(crate) worst: Option<(String, String, usize)>,
}

/// Captures so many samples of each load, and judges them.
pub fn measure(guest: &mut dyn Guest, samples: usize) -> Result<Vec<Callers>> {
    let mut found = Vec::new();
    for load in &LOADS {
        let captures = guest.capture(load.name, samples)?;
        let mut judge = Judge::new(&captures.images, &captures.callers);
        let mut by = |way| judge.agreement(&captures.samples, way, Extent::LeafCaller);
        found.push(Callers {
            load: load.name,
            naive: by(Way::Naive),
            bytes: by(Way::Bytes),
            table: by(Way::Table),
            every_frame: by(Way::EveryFrame),
            worst: judge.worst(&captures.samples, Way::Table),
        });
    }
    Ok(found)
}

pub(crate) fn rows(guest: &mut dyn Guest, samples: usize) -> Result<Vec<Row>> {
    let callers = measure(guest, samples)?;
    let rows = callers.into_iter().map(|callers| {
        let found = callers.table.share();
        Row {
            case: 2,
            load: callers.load.into(),
            truth: format!(
                "callers of {} samples by full unwind tables; {} could not be judged",
                callers.naive.judged, callers.naive.unjudged
            ),
            said: format!(
                "{} with the table, {} with `--unwind table`, {} by byte rules",
                percent(found),
                percent(callers.every_frame.share()),
                percent(callers.bytes.share())
            ),
            interval: format!("at least {} with the table", percent(GOAL)),
            naive: Some(percent(callers.naive.share())),
            verdict: Verdict::of(found >= GOAL, || match callers.worst {
                Some((right, said, count)) => {
                    format!("{count} times {right}, said to be called by {said}")
                }
                None => percent(found),
            }),
            ..Row::default()
        }
    });
    Ok(rows.collect())
}
