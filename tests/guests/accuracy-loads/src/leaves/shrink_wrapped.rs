//! Functions that set up a frame only on the path that needs it; the short path has none.

use core::hint::black_box;

use super::{Buffers, Caller, Load};
use crate::work::step;

pub(super) const LOAD: Load = Load {
    name: "shrink-wrapped",
    callers: &[
        Caller { name: "read_often", parts: 80, call: read_often },
        Caller { name: "read_seldom", parts: 20, call: read_seldom },
    ],
};

#[inline(never)]
fn read_often(buffers: &mut Buffers, parts: u32) -> u64 {
    read(buffers, parts * 100, 61) ^ 1
}

#[inline(never)]
fn read_seldom(buffers: &mut Buffers, parts: u32) -> u64 {
    read(buffers, parts * 60, 7) ^ 3
}

#[inline(always)]
fn read(buffers: &mut Buffers, times: u32, every: u32) -> u64 {
    let mut sum = 0_u64;
    for time in 0..times {
        let key = &mut buffers.keys[time as usize % 256];
        if time.is_multiple_of(every) {
            *key = 0;
        }
        sum = sum.wrapping_add(u64::from(cached(black_box(key))));
    }
    sum
}

/// Usually cached already; otherwise many values must be preserved over calls.
#[inline(never)]
fn cached(key: &mut u32) -> u32 {
    if *key != 0 {
        return *key;
    }
    let (mut a, mut b, mut c, mut d) = (1, 2, 3, 4);
    for _ in 0..4 {
        a = mixed(a ^ d);
        b = mixed(b ^ a);
        c = mixed(c ^ b);
        d = mixed(d ^ c);
    }
    *key = (a ^ b ^ c ^ d) as u32 | 1;
    *key
}

#[inline(never)]
fn mixed(state: u64) -> u64 {
    step(step(black_box(state))).wrapping_add(139)
}
