//! A thread that stores a value in `errno` and checks whether it is preserved.
//!
//! A successful system call may change `errno`, though Linux's do not; so the timer calls of this
//! guest go through a wrapper that always does. The first sample then reveals a signal handler that
//! does not restore `errno`.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

static SPOIL: AtomicBool = AtomicBool::new(false);
static SPOILT: AtomicU64 = AtomicU64::new(0);

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    SPOIL.store(true, Ordering::Relaxed);
    let mut checks = 0_u64;
    while !stop.is_set() {
        let missing = std::fs::metadata("/no such file");
        let expected = missing.err().and_then(|error| error.raw_os_error());
        for _ in 0..10_000 {
            let found = io::Error::last_os_error().raw_os_error();
            if found != expected {
                return Err(format!("errno was {expected:?} and became {found:?}").into());
            }
            checks += 1;
        }
    }
    let spoilt = SPOILT.load(Ordering::Relaxed);
    println!("errno kept in {checks} checks, {spoilt} times changed by the handler's calls");
    Ok(())
}

/// Replaces the C library's function: does the same, then changes `errno`.
///
/// # Safety
/// As `timer_settime(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn timer_settime(
    timer: libc::timer_t,
    flags: c_int,
    new: *const libc::itimerspec,
    old: *mut libc::itimerspec,
) -> c_int {
    // The C library's handle of a signalling timer is the kernel's number.
    let number = timer.addr() as c_int;
    // SAFETY: guaranteed by the caller.
    let result = unsafe { libc::syscall(libc::SYS_timer_settime, number, flags, new, old) };
    if SPOIL.load(Ordering::Relaxed) {
        SPOILT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the calling thread's `errno`.
        unsafe { *libc::__errno_location() = libc::EINVAL };
    }
    result as c_int
}
