//! A vCPU in each state that a snapshot can show: 0 runs, 1 is blocked, 2 runs with the agent's
//! signal masked, 3 has no thread.
#![allow(unsafe_code)]

use std::error::Error;
use std::hint::spin_loop;
use std::io;
use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::{self, Guest, Vcpu};

use crate::stop::Stop;

pub(crate) const VCPUS: u32 = 4;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    thread::scope(|scope| {
        // One after another, because each takes the first free vCPU.
        let (registered, next) = std::sync::mpsc::channel();
        let mut threads = Vec::new();
        for work in [runs, is_blocked, is_masked] {
            let registered = registered.clone();
            threads.push(scope.spawn(move || -> Result<(), hosted::Error> {
                let vcpu = guest.register_thread()?;
                let _ = registered.send(());
                work(&vcpu, stop);
                Ok(())
            }));
            next.recv()?;
        }
        println!("registered");
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
}

#[inline(never)]
fn runs(_: &Vcpu, stop: &Stop) {
    while !stop.is_set() {
        spin_loop();
    }
}

#[inline(never)]
fn is_blocked(vcpu: &Vcpu, stop: &Stop) {
    while !stop.is_set() {
        vcpu.block(|| {
            // A thread that sleeps in slices: a signal must not end the wait.
            while !stop.is_set() {
                thread::sleep(Duration::from_millis(200));
            }
        });
    }
}

#[inline(never)]
fn is_masked(_: &Vcpu, stop: &Stop) {
    if let Err(error) = mask_signals() {
        eprintln!("cannot mask signals: {error}");
    }
    while !stop.is_set() {
        spin_loop();
    }
}

fn mask_signals() -> io::Result<()> {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initializes the set, and both calls use it only.
    let error = unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
