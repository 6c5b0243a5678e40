//! The profiler in a unikernel on a real Xen, met by the client's own program.
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a failure.

#![allow(clippy::unwrap_used)]

mod accounting;
mod bad_line;
mod c_kernel;
mod clients;
mod dropin;
mod faults;
mod fleet;
mod flight;
mod harness;
mod hot_spots;
mod idle;
mod keys;
mod memory;
mod restore;
mod sources;
mod stuck;
mod tracing;
mod traffic;
mod vcpus;
