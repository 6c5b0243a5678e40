//! The clocks that truth is measured with.
#![allow(unsafe_code)]

/// How long the calling thread has run, in ns.
pub(crate) fn running_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The monotonic clock in ns.
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is the one asked for. Both clocks are there on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
