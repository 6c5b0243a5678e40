//! Case 2: the callers of leaf functions.
//!
//! Samples of loads that spend their time where a frame pointer does not tell the caller are captured with
//! their stacks; the agent's walk and full unwind tables are asked for the caller of each.

use unikprof_accuracy_loads::leaves::LOADS;

use super::error::AccuracyError;
use super::guest::Guest;
use super::judge::{Agreement, Extent, Judge, Way};
use super::row::{Row, Verdict, percent};

/// The part of the samples whose caller must be right with the table.
pub const GOAL: f64 = 0.99;

/// What came of one load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    /// The load.
    pub load: &'static str,
    /// Along frame pointers alone.
    pub naive: Agreement,
}

/// Captures so many samples of each load, and judges them.
///
/// # Errors
/// [`AccuracyError`].
pub fn measure(guest: &mut dyn Guest, samples: usize) -> Result<Vec<Callers>, AccuracyError> {
    let mut found = Vec::new();
    for load in &LOADS {
        let (images, captured) = guest.capture(load.name, samples)?;
        let mut judge = Judge::new(&images);
        found.push(Callers {
            load: load.name,
            naive: judge.agreement(&captured, Way::Naive, Extent::LeafCaller),
        });
    }
    Ok(found)
}

/// The case's rows, one a load.
///
/// # Errors
/// [`AccuracyError`].
pub fn rows(guest: &mut dyn Guest, samples: usize) -> Result<Vec<Row>, AccuracyError> {
    let callers = measure(guest, samples)?;
    let rows = callers.into_iter().map(|callers| Row {
        case: 2,
        load: callers.load.into(),
        truth: format!(
            "{} samples by full unwind tables, {} not to be judged",
            callers.naive.judged, callers.naive.unjudged
        ),
        said: String::new(),
        interval: format!("at least {}", percent(GOAL)),
        naive: Some(percent(callers.naive.share())),
        fixed: None,
        verdict: Verdict::Beside,
    });
    Ok(rows.collect())
}
