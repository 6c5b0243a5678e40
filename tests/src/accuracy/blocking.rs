//! Case 7: waiting for timers and for the network.
//!
//! Recorded with `--mode off-cpu`, a profile says where the guest waited, and how long. The truth
//! is the monotonic clock around each wait, less what the thread ran in it or could have run while
//! others did.

use anyhow::Result;
use unikprof_link::record::{Mode, Settings};

use super::guest::{Guest, settings};
use super::row::{Row, Verdict, percent};

/// The largest allowed error of a function's blocked time, as a part of it.
pub const GOAL: f64 = 0.02;

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub waits: u64,
    /// The duration of each wait for a timer, in ns.
    pub timer_ns: u64,
    /// The duration of each wait for the network's answer, in ns.
    pub network_ns: u64,
}

pub(crate) const FUNCTIONS: [&str; 2] = ["wait_for_timer", "wait_for_network"];

/// The result for one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    pub(crate) function: &'static str,
    /// The time that it was blocked, in ns.
    pub truth_ns: u64,
    /// The profile's figure for it, in ns.
    pub(crate) shown_ns: u64,
}

impl Waited {
    /// The profile's error, as a part of the truth.
    pub fn error(&self) -> f64 {
        self.shown_ns as f64 / self.truth_ns.max(1) as f64 - 1.0
    }
}

pub fn measure(guest: &mut dyn Guest, effort: &Effort) -> Result<[Waited; 2]> {
    let settings = Settings { mode: Mode::OffCpu, ..settings(1_000_000) };
    let command = format!(
        "waits count={} timer_ns={} network_ns={}",
        effort.waits, effort.timer_ns, effort.network_ns
    );
    let run = guest.record(&settings, &command)?;
    Ok(FUNCTIONS.map(|function| Waited {
        function,
        truth_ns: run.truth.get(function),
        shown_ns: run.total(function).samples,
    }))
}

pub(crate) fn rows(guest: &mut dyn Guest, effort: &Effort) -> Result<Vec<Row>> {
    let waited = measure(guest, effort)?;
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    let row = |waited: Waited| Row {
        case: 7,
        load: format!("{} waits in `{}`", effort.waits, waited.function),
        truth: format!("{} blocked", ms(waited.truth_ns)),
        said: format!("{} in it, off by {}", ms(waited.shown_ns), percent(waited.error())),
        interval: format!("± {}", percent(GOAL)),
        verdict: Verdict::of(waited.error().abs() <= GOAL, || percent(waited.error())),
        ..Row::default()
    };
    Ok(waited.map(row).to_vec())
}
