//! The whole way with a kernel in C on a real Xen: gcc, the header, the archive with its own TCP, and the kernel's
//! own timer, threads and netfront (`tests/guests/c-xen`).
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a failure.

#![allow(clippy::unwrap_used)]

mod blocked;
mod guide;
mod harness;
mod names;
mod own_kernel;
mod peers;
mod size;
mod ticks;
