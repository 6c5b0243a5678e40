//! Functions with known shares of the work: of 100 parts, `sixty` takes 60, `thirty` 30, `ten` 10.
//!
//! Each works in its own frame, on its own lines, and calls nothing, so that a profile must name
//! these functions and lines. `morning` calls the first and the last, `evening` the second. A
//! caller modifies each result, so that no call becomes a tail jump.

use std::error::Error;
use std::hint::black_box;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const PART: u32 = 1_000;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    let mut state = 1;
    while !stop.is_set() {
        state = black_box(day(black_box(state)));
    }
    Ok(())
}

#[inline(never)]
fn day(state: u64) -> u64 {
    let state = morning(state);
    evening(state) | 1
}

#[inline(never)]
fn morning(state: u64) -> u64 {
    let state = sixty(state);
    ten(state) ^ 3
}

#[inline(never)]
fn evening(state: u64) -> u64 {
    thirty(state) ^ 5
}

#[inline(never)]
fn sixty(mut state: u64) -> u64 {
    let mut left = 60 * PART;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}

#[inline(never)]
fn thirty(mut state: u64) -> u64 {
    let mut left = 30 * PART;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}

#[inline(never)]
fn ten(mut state: u64) -> u64 {
    let mut left = 10 * PART;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}
