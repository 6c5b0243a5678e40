//! Small functions that call small functions: most of the time is in prologues and epilogues.

use core::hint::black_box;

use super::{Buffers, Caller, Load};

pub(super) const LOAD: Load = Load {
    name: "small functions",
    callers: &[
        Caller { name: "count_pairs", parts: 70, call: count_pairs },
        Caller { name: "count_steps", parts: 30, call: count_steps },
    ],
};

#[inline(never)]
fn count_pairs(_: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 0_u64;
    for pair in 0..u64::from(parts) * 60 {
        sum = sum.wrapping_add(both(pair, sum));
    }
    sum
}

#[inline(never)]
fn count_steps(_: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 0_u64;
    for number in 0..u64::from(parts) / 3 {
        sum = sum.wrapping_add(fibonacci(black_box(9 + number % 2)));
    }
    sum
}

/// Preserves values over two calls, so it saves and restores registers.
#[inline(never)]
fn both(left: u64, right: u64) -> u64 {
    let first = increment(left);
    let second = increment(right);
    first.rotate_left(3) ^ second ^ left
}

#[inline(never)]
fn increment(value: u64) -> u64 {
    black_box(value) + 1
}

/// The slow algorithm, which consists of calls only.
#[inline(never)]
fn fibonacci(number: u64) -> u64 {
    if number < 2 {
        return increment(number);
    }
    fibonacci(number - 1) ^ fibonacci(number - 2).rotate_left(1)
}
