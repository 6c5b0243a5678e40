//! Sorts many short and a few long arrays, with a comparison function that is called.

use super::{Buffers, Caller, KEYS, Load};
use crate::work::step;

pub(super) const LOAD: Load = Load {
    name: "sorts",
    callers: &[
        Caller { name: "sort_short_rows", parts: 65, call: sort_short_rows },
        Caller { name: "sort_long_rows", parts: 35, call: sort_long_rows },
    ],
};

#[inline(never)]
fn sort_short_rows(buffers: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 0;
    for row in 0..parts / 3 {
        fill(&mut buffers.keys, row);
        for keys in buffers.keys.chunks_mut(16) {
            insertion_sort(keys);
            sum ^= u64::from(keys[0]);
        }
    }
    sum
}

#[inline(never)]
fn sort_long_rows(buffers: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 0;
    for row in 0..parts / 16 {
        fill(&mut buffers.keys, row);
        buffers.keys.sort_unstable_by(|a, b| compare(a, b).cmp(&0));
        sum ^= u64::from(buffers.keys[KEYS / 2]);
    }
    sum
}

#[inline(never)]
fn insertion_sort(keys: &mut [u32]) {
    for end in 1..keys.len() {
        let mut at = end;
        while at > 0 && compare(&keys[at - 1], &keys[at]) > 0 {
            keys.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Less than, equal to or greater than 0, as C's `qsort` requires.
#[inline(never)]
fn compare(left: &u32, right: &u32) -> i32 {
    i32::from(left > right) - i32::from(left < right)
}

#[inline(never)]
fn fill(keys: &mut [u32], seed: u32) {
    let mut state = u64::from(seed) | 1 << 40;
    for key in keys {
        state = step(state);
        *key = state as u32;
    }
}
