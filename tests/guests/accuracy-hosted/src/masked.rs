//! Periods with the agent's signal blocked, as a kernel masks events.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;

use unikprof_accuracy_loads::bursts::burst;
use unikprof_accuracy_loads::orders::{Order, Truth};

use crate::clock::running_ns;

/// `masked count=N masked_ns=NS open_ns=NS`: `count` masked periods of work, and as many unmasked
/// ones.
pub(crate) fn run(order: Order<'_>) -> io::Result<Option<Truth>> {
    let [Some(count), Some(masked_ns), Some(open_ns)] =
        ["count", "masked_ns", "open_ns"].map(|name| order.number::<u64>(name))
    else {
        return Ok(None);
    };
    let truth = Truth::begin(running_ns);
    for _ in 0..count {
        masked_work(masked_ns)?;
        black_box(open_work(open_ns));
    }
    Ok(Some(truth))
}

#[inline(never)]
fn masked_work(ns: u64) -> io::Result<()> {
    set_mask(libc::SIG_BLOCK)?;
    black_box(burst(&mut running_ns, ns));
    unmask()?;
    black_box(());
    Ok(())
}

/// All blocked signals are delivered here.
#[inline(never)]
fn unmask() -> io::Result<()> {
    set_mask(libc::SIG_UNBLOCK)
}

#[inline(never)]
fn open_work(ns: u64) -> u64 {
    burst(&mut running_ns, ns) | 1
}

fn set_mask(how: i32) -> io::Result<()> {
    // SAFETY: zeros are a valid signal set, which the calls below fill in.
    let mut signals: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: a local signal set, and the calling thread's mask.
    let error = unsafe {
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGPROF);
        libc::pthread_sigmask(how, &raw const signals, core::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}
