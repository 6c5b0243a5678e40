//! Case 9: code that keeps no frame pointers: some of a stack, or a whole guest.
//!
//! Captured stacks are walked whole, along frame pointers and by the caller table for every frame
//! (`--unwind table`), and compared frame by frame with full unwind tables. Recordings of a guest
//! without frame pointers then say how many stacks reach their outermost function.

use anyhow::Result;
use unikprof_link::record::Settings;
use unikprof_profile::profile::Unwind;

use super::guest::{Guest, settings};
use super::judge::{Agreement, Extent, Judge, Way};
use super::row::{Row, Verdict, percent};

/// The part of the stacks that must be right from the leaf to the outermost frame.
pub const GOAL: f64 = 0.99;

/// The result for one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stacks {
    /// Agreement along frame pointers alone.
    pub naive: Agreement,
    /// Agreement as a recording does by itself: the leaf by the table, the rest along frame
    /// pointers.
    pub table: Agreement,
    /// Agreement with the caller table for every frame.
    pub every_frame: Agreement,
}

/// Captures so many samples of a load, and judges their whole stacks.
pub fn measure(guest: &mut dyn Guest, load: &str, samples: usize) -> Result<Stacks> {
    let captures = guest.capture(load, samples)?;
    let mut judge = Judge::new(&captures.images, &captures.callers);
    let mut by = |way| judge.agreement(&captures.samples, way, Extent::Whole);
    Ok(Stacks { naive: by(Way::Naive), table: by(Way::Table), every_frame: by(Way::EveryFrame) })
}

/// The case's row for one load; `what` says in words what the stacks are made of.
pub(crate) fn row(guest: &mut dyn Guest, what: &str, load: &str, samples: usize) -> Result<Row> {
    let stacks = measure(guest, load, samples)?;
    let found = stacks.every_frame.share();
    Ok(Row {
        case: 9,
        load: what.into(),
        truth: format!(
            "{} whole stacks by full unwind tables; {} could not be judged",
            stacks.naive.judged, stacks.naive.unjudged
        ),
        said: format!(
            "{} with `--unwind table`, {} without it",
            percent(found),
            percent(stacks.table.share())
        ),
        interval: format!("at least {} with it", percent(GOAL)),
        naive: Some(percent(stacks.naive.share())),
        verdict: Verdict::of(found >= GOAL, || percent(found)),
        ..Row::default()
    })
}

/// The result of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    pub samples: u64,
    /// Samples whose stack reaches the outermost function.
    pub(crate) outermost: u64,
    pub(crate) broken: u64,
}

impl Reached {
    /// The part that reaches it; 0 where there are no samples.
    pub fn share(&self) -> f64 {
        self.outermost as f64 / self.samples.max(1) as f64
    }
}

/// Records a load of small functions for `run_ns` of running time; `outermost` is the function that
/// all its stacks should reach.
pub fn record(
    guest: &mut dyn Guest,
    outermost: &str,
    run_ns: u64,
    unwind: Unwind,
) -> Result<Reached> {
    let settings = Settings { unwind, ..settings(1_000_000) };
    let command = format!("leaves load=small_functions ns={run_ns}");
    let run = guest.record(&settings, &command)?;
    Ok(Reached {
        samples: run.samples,
        outermost: run.total(outermost).samples,
        broken: run.counters.broken,
    })
}

/// The row of recordings with and without `--unwind table`.
pub(crate) fn recorded_row(guest: &mut dyn Guest, outermost: &str, run_ns: u64) -> Result<Row> {
    let by_table = record(guest, outermost, run_ns, Unwind::Table)?;
    let without = record(guest, outermost, run_ns, Unwind::FramePointers)?;
    let said = |found: &Reached| {
        format!(
            "{} reach `{outermost}`, {} of {} broken",
            percent(found.share()),
            found.broken,
            found.samples
        )
    };
    let found = by_table.share();
    Ok(Row {
        case: 9,
        load: "no frame pointers at all: recordings".into(),
        truth: format!("all stacks reach `{outermost}`"),
        said: format!("with `--unwind table` {}; without it {}", said(&by_table), said(&without)),
        interval: format!("at least {} with it", percent(GOAL)),
        verdict: Verdict::of(found >= GOAL, || percent(found)),
        ..Row::default()
    })
}
