//! One vCPU at one moment: its clocks, its times, its counters.

use serde::{Deserialize, Serialize};

use super::Counters;

/// One vCPU at one moment of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The monotonic clock.
    pub at_ns: u64,
    /// The cycle counter; 0 where the platform has none.
    pub cycles: u64,
    /// The vCPU's running time, as the sampler judges it, in ns.
    pub running_ns: u64,
    /// Its blocked time, as the sampler judges it, in ns.
    pub blocked_ns: u64,
    /// The kinds of time, where the platform tells them.
    pub runstate: Option<Runstate>,
    /// The counters since the recording began.
    pub counters: Counters,
    /// Cycles spent in ticks, and in blocking and waking where that is recorded, since the recording
    /// began.
    pub tick_cycles: u64,
}

/// How a vCPU has spent its time, in ns since a fixed moment of the platform's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runstate {
    /// On a physical CPU.
    pub running_ns: u64,
    /// Ready to run while others ran: stolen.
    pub runnable_ns: u64,
    /// Waiting for an event.
    pub blocked_ns: u64,
    /// Neither: paused, or not yet brought up.
    pub offline_ns: u64,
}
