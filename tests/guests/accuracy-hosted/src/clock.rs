//! The clocks that the true times are measured with.
#![allow(unsafe_code)]

pub(crate) fn running_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure has the required type. Every Linux has both clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
