//! Shared by the benches: clocks, generated stacks, and guests in Rust, in C and on Xen.
#![allow(
    dead_code,
    unsafe_code,
    clippy::unwrap_used,
    reason = "each bench that includes this uses a part of it"
)]

#[path = "../../capi/src/abi.rs"]
#[allow(unreachable_pub, reason = "another package's file")]
pub(crate) mod abi;
pub(crate) mod c_library;
pub(crate) mod cycles;
#[path = "../../tests/it/fake/mod.rs"]
pub(crate) mod fake;
pub(crate) mod load;
pub(crate) mod sampler;
#[cfg(feature = "xen")]
pub(crate) mod xen_guest;

/// `cargo bench` passes `--bench`; `cargo test --benches` does not, and only checks that the bench
/// starts.
pub(crate) fn asked_to_measure() -> bool {
    let asked = std::env::args().any(|argument| argument == "--bench");
    if !asked {
        println!("nothing measured: run it with cargo bench");
    }
    asked
}

/// The CPU time of this thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure has the required type.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(failed, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
