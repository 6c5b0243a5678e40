//! At least two seconds of usual work, then two of a burst, repeatedly or once. The guest reports
//! both by its own events.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const PHASE: Duration = Duration::from_secs(2);
/// The minimum work of a phase, however little CPU time the guest gets: some tenths of a second.
const LEAST: u32 = 10_000;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let batch = agent.event_name("batch")?;
    let due = agent.event_name("batch due")?;
    let depth = agent.event_name("queue depth")?;
    let (mut state, mut number) = (1, 0);
    while !stop.is_set() {
        number += 1;
        agent.counter(depth, 3);
        state = phase(state, stop, usual);
        agent.mark(due, number);
        agent.counter(depth, -7);
        let _span = agent.span(batch);
        state = phase(state, stop, burst);
    }
    Ok(())
}

fn phase(mut state: u64, stop: &Stop, work: fn(u64) -> u64) -> u64 {
    let end = Instant::now() + PHASE;
    let mut done = 0;
    while (done < LEAST || Instant::now() < end) && !stop.is_set() {
        state = black_box(work(black_box(state))) | 1;
        done += 1;
    }
    state
}

#[inline(never)]
fn usual(mut state: u64) -> u64 {
    let mut left = 20_000;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        left -= 1;
    }
    state
}

#[inline(never)]
fn burst(mut state: u64) -> u64 {
    let mut left = 20_000;
    while left > 0 {
        state ^= state << 17;
        state ^= state >> 5;
        left -= 1;
    }
    state
}
