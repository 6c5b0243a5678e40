//! Case 6: work while events are masked.
//!
//! Events due meanwhile are delivered when they are unmasked. One sample comes of each stretch,
//! late; it says nothing of where the stretch was spent, and must not be charged to what unmasked.

use super::guest::{Guest, settings};
use super::row::{Row, Verdict};
use anyhow::Result;

/// Samples of a hundred stretches that may be charged to the code that unmasks.
pub const CHARGED_PERCENT: u64 = 1;

/// The same in the emulator: twice the part of a period that an upcall takes there. What comes due
/// within it is charged to the instruction that was interrupted, the one behind the unmasking too.
pub const CHARGED_PERCENT_ON_XEN: u64 = 10;

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Masked stretches, with a stretch between them that is not.
    pub stretches: u64,
    /// The running time of each masked stretch, in ns: several sampling periods.
    pub masked_ns: u64,
    /// The running time of each other stretch, in ns.
    pub open_ns: u64,
    pub period_ns: u64,
}

/// The result of the case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masked {
    pub(crate) stretches: u64,
    /// Samples that the agent counted as late.
    pub(crate) late: u64,
    /// Samples that are shown as late.
    pub(crate) shown: u64,
    /// Samples charged to the code that unmasks.
    pub(crate) charged: u64,
    /// Samples that should have come and did not, where the agent can tell.
    pub(crate) missing: Option<i64>,
}

impl Masked {
    /// Whether each stretch was told, and so many samples of a hundred stretches, at the most,
    /// charged to the code that unmasks. A stretch of which others take a part is late too: there
    /// may be more, not less.
    pub fn is_told(&self, charged_percent: u64) -> bool {
        self.late >= self.stretches
            && self.shown == self.late
            && self.charged * 100 <= self.stretches * charged_percent
    }
}

pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<Masked> {
    let command = format!(
        "masked count={} masked_ns={} open_ns={}",
        effort.stretches, effort.masked_ns, effort.open_ns
    );
    let run = guest.record(&settings(effort.period_ns), &command)?;
    Ok(Masked {
        stretches: effort.stretches,
        late: run.counters.late,
        shown: run.marked("[sample arrived late]"),
        missing: run.counters.missing,
        charged: run.own("unmask").samples + run.own("set_mask").samples,
    })
}

pub(crate) fn rows(
    guest: &mut dyn Guest,
    effort: &Effort,
    charged_percent: u64,
) -> Result<Vec<Row>> {
    let found = measure(guest, effort)?;
    let missing = found.missing.map_or("unknown".into(), |n| n.to_string());
    let said = format!(
        "{} late samples, {} shown so; {} charged to the code that unmasks; {missing} missing",
        found.late, found.shown, found.charged
    );
    Ok(vec![Row {
        case: 6,
        load: format!(
            "{} µs of work with events masked, {} µs with events open, sampled each {} µs",
            effort.masked_ns / 1000,
            effort.open_ns / 1000,
            effort.period_ns / 1000
        ),
        truth: format!("{} masked stretches", found.stretches),
        said: said.clone(),
        interval: format!("one late sample a stretch; at most {charged_percent} % charged"),
        verdict: Verdict::of(found.is_told(charged_percent), || said),
        ..Row::default()
    }])
}
