//! The existing recordings, their epochs and names, the guest's events, and crash dumps.
//!
//! The guest's events (`events`) and the crash dump (`crash`) may be called from any context. The
//! rest runs in the guest's loop, one call at a time. No module here performs I/O or waits: if a
//! tick on another vCPU prevents a step, the caller tries again later.

pub(crate) mod crash;
pub(crate) mod events;
mod notes;
pub(crate) mod recorder;
pub(crate) mod ring_answer;
mod upload;
pub(crate) mod welcome;
