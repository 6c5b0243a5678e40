//! Permanent and short-lived threads, each a vCPU while it lives.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use unikprof_agent::hosted::{self, Guest};

use crate::stop::Stop;

/// Two vCPUs have a permanent thread, two a new one repeatedly.
pub(crate) const VCPUS: u32 = 4;

/// The number of short-lived threads for each line of output.
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
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
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

/// Works for about two milliseconds: a few samples, or none.
fn passing(guest: &Guest) -> Result<(), hosted::Error> {
    let _vcpu = guest.register_thread()?;
    black_box(passing_work(black_box(1)));
    Ok(())
}

macro_rules! work {
    ($($name:ident $turns:literal)*) => {$(
        #[inline(never)]
        fn $name(mut state: u64) -> u64 {
            let mut left = $turns;
            while left > 0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                left -= 1;
            }
            state
        }
    )*};
}

work! { lasting_work 100_000 passing_work 500_000 }
