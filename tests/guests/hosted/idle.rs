//! Guests that wait nearly all the time: one tells its agent, the other does not.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io, thread};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const NAP: Duration = Duration::from_millis(200);

/// Waits inside [`Vcpu::block`](unikprof_agent::hosted::Vcpu::block).
pub(crate) fn blocked(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let vcpu = guest.register_thread()?;
    println!("thread {}", this_thread()?.display());
    while !stop.is_set() {
        vcpu.block(|| thread::sleep(NAP));
    }
    Ok(())
}

/// Waits outside of it: tests see here what an agent that wakes idle guests would cause.
pub(crate) fn asleep(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    println!("thread {}", this_thread()?.display());
    while !stop.is_set() {
        thread::sleep(NAP);
    }
    Ok(())
}

/// The thread's folder in `/proc`, as `PID/task/TID`.
fn this_thread() -> io::Result<PathBuf> {
    fs::read_link("/proc/thread-self")
}
