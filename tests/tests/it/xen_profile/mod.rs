//! The profiler in a unikernel on a real Xen, met by the client's own program.
//!
//! Cases that share a lab are next to each other in the order of their names, so that it is booted
//! once: see [`unikprof_tests::lab::Shared`].
//!
//! Run them without the other suites and with 12 threads:
//!
//! ```text
//! RUST_TEST_THREADS=12 cargo test -p unikprof-tests --test it -- --include-ignored xen_profile::
//! ```
//!
//! A case that waits takes no processor, and [`LABS`](unikprof_tests::lab::LABS) limits how many
//! labs there are. With few threads, all of them would wait for the lab of one group of cases while
//! the other lab stands idle.
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a
//! failure.

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
