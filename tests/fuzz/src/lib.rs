//! Checks for any bytes from the other side: of the network, of a file, of a stack.
//!
//! Each module checks one thing for one input, and panics where it does not hold; the targets in
//! `fuzz_targets` hand it what libFuzzer makes up. `cargo test` checks the seeds.

pub mod caller_table;
mod client;
mod fake;
pub mod frames;
mod guarded;
pub mod heap;
mod input;
pub mod keyed;
pub mod nodes;
pub mod recording;
pub mod seeds;
pub mod sessions;
pub mod traces;
pub mod walk;

use peak_alloc::PeakAlloc;

/// Counts what is allocated, so that it can be bounded.
#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;
