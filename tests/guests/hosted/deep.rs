//! Endlessly different stacks: each descends a different path of calls of `left` and `right`.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

const DEPTH: u32 = 40;

/// The work at the end of a path.
type Work = fn(u64) -> u64;

/// A new path, 40 frames deep, every few microseconds, for a table that takes a while to download.
pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    let mut state = 88_172_645_463_325_252_u64;
    while !stop.is_set() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        black_box(left(black_box(state), DEPTH, spin));
    }
    Ok(())
}

/// The depth of the paths of `churn`.
const CHURN_DEPTH: u32 = 24;
/// The number of paths that `churn` repeats; each of the others is taken once.
const HOT_WAYS: u64 = 50;
/// The time of one path on an otherwise idle machine: half of the paths are new, 200 per second.
const WAY: Duration = Duration::from_micros(2_500);
/// The spins of one path, measured at the start: reading a clock on the path would be another
/// stack.
static SPINS: AtomicU32 = AtomicU32::new(1);
const MEASURED: u32 = 200;

/// An endless load: half of its work is on 50 hot stacks, the other half on stacks that occur once.
/// The paths are `way(0)`, `way(1)` and so on, of which the first 50 are the hot ones.
pub(crate) fn churn(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    // The minimum of several measurements, because other programs may have run in the others.
    let spins_take = || {
        let started = Instant::now();
        (0..MEASURED).fold(1, |state, _| black_box(spin(state)));
        started.elapsed().as_nanos().max(1)
    };
    let best = (0..20).map(|_| spins_take()).min().unwrap_or(1);
    let spins = WAY.as_nanos() * u128::from(MEASURED) / best;
    SPINS.store(spins.max(1) as u32, Ordering::Relaxed);
    let _vcpu = guest.register_thread()?;
    for request in 0.. {
        if stop.is_set() {
            break;
        }
        let number = match request % 2 {
            0 => request / 2 % HOT_WAYS,
            _ => HOT_WAYS + request / 2,
        };
        black_box(left(black_box(way(number)), CHURN_DEPTH, work));
    }
    Ok(())
}

/// The path with this number, by SplitMix64, so that the test can compute all paths.
fn way(number: u64) -> u64 {
    let mut way = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    way = (way ^ (way >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    way = (way ^ (way >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    way ^ (way >> 31)
}

/// Works for the time of one path.
#[inline(never)]
fn work(state: u64) -> u64 {
    let spins = SPINS.load(Ordering::Relaxed);
    (0..spins).fold(state, |state, _| spin(state)) ^ 1
}

/// Continues to the left or right by the lowest bit of `way`.
fn next(way: u64, depth: u32, work: Work) -> u64 {
    match (depth, way & 1) {
        (0, _) => work(way),
        (_, 0) => left(way.rotate_right(1), depth - 1, work),
        _ => right(way.rotate_right(1), depth - 1, work),
    }
}

#[inline(never)]
fn left(way: u64, depth: u32, work: Work) -> u64 {
    next(way, depth, work) ^ 1
}

#[inline(never)]
fn right(way: u64, depth: u32, work: Work) -> u64 {
    next(way, depth, work) ^ 2
}

#[inline(never)]
fn spin(mut state: u64) -> u64 {
    let mut left = 2_000;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        left -= 1;
    }
    state
}
