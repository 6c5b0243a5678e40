//! Two seconds of waiting, then at least two of work, repeatedly; the waiting is a span of the
//! guest.

use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::{Guest, Vcpu};

use crate::stop::Stop;

const PHASE: Duration = Duration::from_secs(2);
/// Long compared with the time in which a loaded machine wakes the guest.
const NAP: Duration = Duration::from_millis(200);
/// The minimum work of a phase, however little CPU time the guest gets: some tenths of a second.
const LEAST: u32 = 10_000;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let waiting = agent.event_name("waiting")?;
    let mut state = 1;
    while !stop.is_set() {
        let span = agent.span(waiting);
        wait(&vcpu, stop);
        drop(span);
        println!("waited");
        state = work(state, stop);
        println!("worked");
    }
    Ok(())
}

#[inline(never)]
fn wait(vcpu: &Vcpu, stop: &Stop) {
    let end = Instant::now() + PHASE;
    while Instant::now() < end && !stop.is_set() {
        vcpu.block(|| thread::sleep(NAP));
    }
}

#[inline(never)]
fn work(mut state: u64, stop: &Stop) -> u64 {
    let end = Instant::now() + PHASE;
    let mut done = 0;
    while (done < LEAST || Instant::now() < end) && !stop.is_set() {
        done += 1;
        for _ in 0..20_000 {
            state ^= black_box(state << 13);
            state ^= state >> 7;
        }
    }
    state
}
