//! Thousands of different stacks, 40 frames deep: a table that takes a while to download.

use std::error::Error;
use std::hint::black_box;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const DEPTH: u32 = 40;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    let mut state = 88_172_645_463_325_252_u64;
    while !stop.is_set() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        black_box(left(black_box(state), DEPTH));
    }
    Ok(())
}

/// Goes on, left or right as the lowest bit of `way` says.
fn next(way: u64, depth: u32) -> u64 {
    match (depth, way & 1) {
        (0, _) => bottom(way),
        (_, 0) => left(way.rotate_right(1), depth - 1),
        _ => right(way.rotate_right(1), depth - 1),
    }
}

#[inline(never)]
fn left(way: u64, depth: u32) -> u64 {
    next(way, depth) ^ 1
}

#[inline(never)]
fn right(way: u64, depth: u32) -> u64 {
    next(way, depth) ^ 2
}

#[inline(never)]
fn bottom(mut state: u64) -> u64 {
    let mut left = 2_000;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}
