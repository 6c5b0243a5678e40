//! Case 6 in the emulator.
//!
//! An upcall takes a hundred microseconds there: what comes due meanwhile is charged to the instruction that was
//! interrupted, the one behind the unmasking too. And the emulator makes some samples late by itself.

use crate::accuracy::error::AccuracyError;
use crate::accuracy::guest::Guest;
use crate::accuracy::masked_events::{Effort, Masked, measure};
use crate::accuracy::row::{Row, Verdict};

/// Whether each stretch was told: one late sample each, and at most so many percent of the stretches charged to the
/// code that unmasks: twice the part of a period that an upcall takes.
pub fn is_told(found: &Masked) -> bool {
    const CHARGED_PERCENT: u64 = 10;
    found.late >= found.stretches
        && found.shown == found.late
        && found.charged * 100 <= found.stretches * CHARGED_PERCENT
}

/// The case's row.
pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>, AccuracyError> {
    let found = measure(guest, effort)?;
    let missing = found.missing.map_or("unknown".into(), |n| n.to_string());
    let said = format!(
        "{} late samples, {} shown so; {} charged to the code that unmasks; {missing} missing",
        found.late, found.shown, found.charged
    );
    // One of those that were due in a stretch comes.
    let swallowed = found.stretches * (effort.masked_ns / effort.period_ns).saturating_sub(1);
    Ok(vec![Row {
        case: 6,
        load: format!(
            "{} ms with interrupts off, {} ms with them on, sampled each {} ms",
            effort.masked_ns / 1_000_000,
            effort.open_ns / 1_000_000,
            effort.period_ns / 1_000_000
        ),
        truth: format!(
            "{} masked stretches, {swallowed} samples missing from them",
            found.stretches
        ),
        said: said.clone(),
        interval: "one late sample a stretch; at most 10 % charged".into(),
        naive: None,
        fixed: None,
        verdict: Verdict::of(is_told(&found), || said),
    }])
}
