//! The profiler in a unikernel on a real Xen, met by the client's own program.
//!
//! Cases that share a lab are next to each other in the order of their names, so that it is booted once: see
//! [`unikprof_tests::lab::Shared`].
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a failure.

#![allow(clippy::unwrap_used)]

mod aarch64;
mod bad_line;
mod c_kernel;
mod dropin;
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
mod vcpus;
mod working;
