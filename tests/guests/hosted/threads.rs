//! Threads that stay and threads that come and go, each a vCPU while it lives.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use unikprof_agent::hosted::{self, Guest};

use crate::stop::Stop;

/// Two of them have one thread for good, two a new one again and again.
pub(crate) const VCPUS: u32 = 4;

/// How many threads come and go from one line that tells of it to the next.
const TOLD: u64 = 100;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let registered = AtomicU64::new(0);
    thread::scope(|scope| {
        let lasting = [(); 2].map(|()| scope.spawn(|| lasting(guest, stop)));
        let renewed = [(); 2].map(|()| {
            scope.spawn(|| -> Result<(), hosted::Error> {
                while !stop.is_set() {
                    let passing = thread::scope(|inner| {
                        let passing = inner.spawn(|| passing(guest));
                        passing.join()
                    });
                    passing.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    let before = registered.fetch_add(1, Ordering::Relaxed);
                    if (before + 1).is_multiple_of(TOLD) {
                        println!("registered {TOLD} more");
                    }
                }
                Ok(())
            })
        });
        for thread in lasting.into_iter().chain(renewed) {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<(), hosted::Error>(())
    })?;
    Ok(())
}

fn lasting(guest: &Guest, stop: &Stop) -> Result<(), hosted::Error> {
    let _vcpu = guest.register_thread()?;
    while !stop.is_set() {
        black_box(lasting_work(black_box(1)));
    }
    Ok(())
}

/// Lives for about two milliseconds of work: a few samples, or none.
fn passing(guest: &Guest) -> Result<(), hosted::Error> {
    let _vcpu = guest.register_thread()?;
    black_box(passing_work(black_box(1)));
    Ok(())
}

#[inline(never)]
fn lasting_work(mut state: u64) -> u64 {
    let mut left = 100_000;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}

#[inline(never)]
fn passing_work(mut state: u64) -> u64 {
    let mut left = 500_000;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}
