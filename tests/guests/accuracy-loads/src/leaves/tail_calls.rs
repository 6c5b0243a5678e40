//! Tail calls that the compiler turns into jumps: the jumping functions are on no stack, and the
//! caller is the function that called the first of them.

use super::{Buffers, Caller, Load};
use crate::work::step;

pub(super) const LOAD: Load = Load {
    name: "tail calls",
    callers: &[
        Caller { name: "send_letters", parts: 55, call: send_letters },
        Caller { name: "send_parcels", parts: 45, call: send_parcels },
    ],
};

#[inline(never)]
fn send_letters(_: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 1;
    for item in 0..u64::from(parts) * 60 {
        sum ^= route(item, sum) ^ 1;
    }
    sum
}

#[inline(never)]
fn send_parcels(_: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 1;
    for item in 0..u64::from(parts) * 60 {
        sum ^= route(item | 1 << 32, sum) ^ 3;
    }
    sum
}

// No `black_box` from here on: it takes the address of a stack variable, and no later call becomes
// a jump.

#[inline(never)]
fn route(item: u64, state: u64) -> u64 {
    if item >> 32 == 0 { by_air(state ^ item) } else { by_sea(state ^ item) }
}

#[inline(never)]
fn by_air(state: u64) -> u64 {
    deliver(step(state))
}

#[inline(never)]
fn by_sea(state: u64) -> u64 {
    deliver(step(step(state)) ^ 1)
}

#[inline(never)]
fn deliver(state: u64) -> u64 {
    step(step(state)).wrapping_add(137)
}
