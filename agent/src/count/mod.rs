//! Counts samples on one vCPU, in the memory given at the start: slot, recordings, stack table,
//! sampler, counters.
//!
//! Everything here may be called from an upcall: it is bounded, and never allocates, locks, waits,
//! panics or uses floating point. The poll starts new epochs and clears counts through the same
//! slot.

pub(crate) mod cells;
pub(crate) mod delivery;
#[cfg_attr(not(feature = "heap"), allow(dead_code))]
pub(crate) mod live;
pub(crate) mod memory;
#[cfg_attr(not(feature = "heap"), allow(dead_code))]
pub(crate) mod points;
pub(crate) mod recording;
#[cfg(all(test, loom))]
mod rotation_model;
pub(crate) mod sampler;
pub(crate) mod slot;
#[cfg(all(test, loom))]
mod slot_model;
pub mod table;
pub(crate) mod vcpu_snapshot;
