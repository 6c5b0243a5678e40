//! The profiler in a unikernel on a real Xen, met by the client's own program.
//!
//! Cases that share a lab are next to each other in the order of their names, so that it is booted
//! once: see [`unikprof_tests::lab::Shared`].
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a
//! failure.

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

/// The number of cases that run or wait for a lab at once. It replaces `RUST_TEST_THREADS`, which
/// is meant for all suites; `--test-threads` on the command line replaces it. A case that waits
/// takes no processor, and [`LABS`](unikprof_tests::lab::LABS) limits how many labs there are. With
/// few threads, all of them would wait for the lab of one group of cases while the other lab stands
/// idle.
const THREADS: &str = "12";

/// The test harness reads the variable in `main`.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the C library calls functions of this section before `main`")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn set_threads() {
        // SAFETY: There is no other thread before `main`.
        unsafe { std::env::set_var("RUST_TEST_THREADS", THREADS) };
    }
    set_threads
};
