//! Periods with the agent's signal blocked, as a kernel masks events.
#![allow(unsafe_code)]

use std::error::Error;
use std::io;

use unikprof_accuracy_loads::bursts::burst;

use crate::clock::running_ns;
use crate::command::{Command, Truth};

/// `masked count=N masked_ns=NS open_ns=NS`: `count` masked periods of work, and as many unmasked ones.
pub(crate) fn run(command: &Command<'_>) -> Result<String, Box<dyn Error>> {
    let count: u64 = command.number("count")?;
    let (masked_ns, open_ns) = (command.number("masked_ns")?, command.number("open_ns")?);
    let mut truth = Truth::begin();
    let (mut masked, mut open) = (0, 0);
    for _ in 0..count {
        masked += masked_work(masked_ns)?;
        open += open_work(open_ns);
    }
    truth.tell("masked_work", masked);
    truth.tell("open_work", open);
    Ok(truth.end())
}

#[inline(never)]
fn masked_work(ns: u64) -> io::Result<u64> {
    set_mask(libc::SIG_BLOCK)?;
    let ran = burst(&mut running_ns, ns);
    unmask()?;
    Ok(ran)
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
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}
