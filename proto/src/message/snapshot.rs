//! One vCPU at one time: clocks, times by state, counters.

use serde::{Deserialize, Serialize};

use super::Counters;

/// One vCPU at one time of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The monotonic clock.
    pub at_ns: u64,
    /// The cycle counter; 0 if the platform has none.
    pub cycles: u64,
    /// The vCPU's running time, as the sampler judges it, in ns.
    pub running_ns: u64,
    /// Its blocked time, as the sampler judges it, in ns.
    pub blocked_ns: u64,
    /// The time in each state, if the platform knows it.
    pub runstate: Option<Runstate>,
    /// The counters since the recording began.
    pub counters: Counters,
    /// Cycles spent in ticks since the recording began, and in block and wake calls if blocked time
    /// is recorded.
    pub tick_cycles: u64,
    /// The bytes that the vCPU has allocated since the agent started, sampled or not; 0 if the
    /// guest reports no allocations. Exact to within 8 KiB if the vCPU allocates at that time.
    pub allocated_bytes: u64,
    /// Sampled allocations of this vCPU, in recordings of mode [`LIVE`](crate::code::mode::LIVE),
    /// that have been freed since the agent started, on any vCPU.
    pub freed_samples: u64,
    /// The estimated cost of a timer delivery outside the ticks, in cycles: arming the timer, the
    /// return from the upcall, the interrupt, and the way to the upcall. 0: not known.
    pub delivery_cycles: u64,
    /// The number of deliveries that this was estimated from.
    pub deliveries_measured: u64,
}

/// The time that a vCPU has spent in each state, in ns since a fixed time chosen by the platform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runstate {
    /// On a physical CPU.
    pub running_ns: u64,
    /// Ready to run while the CPU was given to others: stolen.
    pub runnable_ns: u64,
    /// Waiting for an event.
    pub blocked_ns: u64,
    /// Neither: paused, or not started.
    pub offline_ns: u64,
}

/// The cost of a recording on all vCPUs since its current epoch began, in ns. Zeros if it does not
/// sample, or if the platform has no cycle counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// The vCPUs' running time.
    pub running_ns: u64,
    /// The time spent in ticks, and in block and wake calls if blocked time is recorded.
    pub sampling_ns: u64,
    /// The estimated time of timer deliveries outside the ticks: see
    /// [`delivery_cycles`](Snapshot::delivery_cycles).
    pub delivery_ns: u64,
    /// The number of deliveries that this was estimated from; 0: it was not estimated.
    pub deliveries_measured: u64,
}
