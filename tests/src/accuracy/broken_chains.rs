//! Case 10: chains of frame pointers that are too deep, or broken.
//!
//! Each sample of the load is to be recorded, counted as what it is, and shown so. With
//! `--unwind table` the frame pointers do not matter, and the stacks of broken chains go on beyond
//! the fault.

use anyhow::Result;
use unikprof_link::record::Settings;
use unikprof_profile::profile::Unwind;

use super::guest::{Guest, settings};
use super::row::{Row, Verdict};

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub run_ns: u64,
    pub period_ns: u64,
}

/// The frames that a recording keeps of a stack that is deeper.
const DEPTH_LIMIT: u32 = 64;

/// A kind of chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    Deep,
    /// A record is its own caller.
    Cyclic,
    /// A frame pointer leads nowhere.
    Corrupted,
    /// A frame pointer is 0 too early.
    Missing,
}

impl Chain {
    pub const ALL: [Chain; 4] = [Chain::Deep, Chain::Cyclic, Chain::Corrupted, Chain::Missing];

    fn load(self) -> &'static str {
        match self {
            Chain::Deep => "200 frames, of which 64 are kept",
            Chain::Cyclic => "a frame record that is its own caller",
            Chain::Corrupted => "a frame pointer to nowhere",
            Chain::Missing => "a frame pointer of 0 too early",
        }
    }

    fn command(self, ns: u64) -> String {
        match self {
            Chain::Deep => format!("deep depth=200 ns={ns}"),
            Chain::Cyclic => format!("chain fault=cyclic_chain ns={ns}"),
            Chain::Corrupted => format!("chain fault=corrupted_chain ns={ns}"),
            Chain::Missing => format!("chain fault=missing_chain ns={ns}"),
        }
    }

    /// The function that works below the fault.
    fn worker(self) -> &'static str {
        match self {
            Chain::Deep => "bottom",
            _ => "under",
        }
    }

    /// The mark that its stacks end with.
    fn mark(self) -> &'static str {
        match self {
            Chain::Deep => "[truncated]",
            _ => "[broken]",
        }
    }
}

/// The result for one chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// Samples of the function below the fault.
    pub worker: u64,
    /// Samples that the agent counted as what they are.
    pub counted: u64,
    /// Samples that are shown with the mark.
    pub shown: u64,
    /// Samples whose stack goes on beyond the fault.
    pub beyond: u64,
    pub adds_up: bool,
}

impl Marked {
    /// Whether nearly all of the function's samples were counted and shown. A few are taken just
    /// before the fault is made or after it is set right.
    pub(crate) fn is_told(&self) -> bool {
        self.adds_up
            && self.worker > 0
            && self.counted == self.shown
            && self.counted * 100 >= self.worker * 99
    }
}

pub fn measure(
    guest: &mut dyn Guest,
    effort: &Effort,
    chain: Chain,
    unwind: Unwind,
) -> Result<Marked> {
    let settings = Settings { depth: Some(DEPTH_LIMIT), unwind, ..settings(effort.period_ns) };
    let run = guest.record(&settings, &chain.command(effort.run_ns))?;
    let counters = run.counters;
    Ok(Marked {
        worker: run.total(chain.worker()).samples,
        counted: match chain {
            Chain::Deep => counters.truncated,
            _ => counters.broken,
        },
        shown: run.total(chain.mark()).samples,
        // Who calls the functions that break their chain.
        beyond: run.total("chains::run").samples,
        adds_up: counters.check().is_ok(),
    })
}

/// Checks nine tenths of the samples below each chain, for the cases in small.
///
/// # Panics
/// If fewer are told.
pub fn assert_each_is_told(guest: &mut dyn Guest, effort: &Effort) {
    for chain in Chain::ALL {
        let found =
            measure(guest, effort, chain, Unwind::FramePointers).unwrap_or_else(|e| panic!("{e}"));
        println!("{chain:?}: {found:?}");
        let told = found.adds_up && found.worker > 0 && found.counted * 10 >= found.worker * 9;
        assert!(told, "{chain:?}: {found:?}");
    }
}

/// The case's rows: each chain as a recording finds it, and broken ones by the table.
pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let row = |load: &str, truth: &Marked, said, interval: &str, verdict| Row {
        case: 10,
        load: load.into(),
        truth: format!("{} samples below it", truth.worker),
        said,
        interval: interval.into(),
        verdict,
        ..Row::default()
    };
    let mut rows = Vec::new();
    for chain in Chain::ALL {
        let found = measure(guest, effort, chain, Unwind::FramePointers)?;
        let Marked { worker, counted, shown, .. } = found;
        rows.push(row(
            chain.load(),
            &found,
            format!("{counted} counted, {shown} shown as {}", chain.mark()),
            "at least 99 % of them",
            Verdict::of(found.is_told(), || format!("{counted} of {worker}")),
        ));
        if chain == Chain::Deep {
            continue;
        }
        let found = measure(guest, effort, chain, Unwind::Table)?;
        let Marked { worker, counted, beyond, .. } = found;
        rows.push(row(
            &format!("{}, `--unwind table`", chain.load()),
            &found,
            format!("{beyond} go on beyond it, {counted} counted as broken"),
            "at least 99 % go on",
            Verdict::of(beyond * 100 >= worker * 99 && worker > 0, || {
                format!("{beyond} of {worker}")
            }),
        ));
    }
    Ok(rows)
}
