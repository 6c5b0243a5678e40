//! Rust code above and below C code without frame pointers.
#![allow(unsafe_code)]

use std::hint::black_box;

unsafe extern "C" {
    fn frameless_outer(work: extern "C" fn(u64) -> u64, state: u64, times: u32) -> u64;
    fn frameless_leaf(state: u64, steps: u32) -> u64;
}

/// About 0.1 ms: work below two C functions, and a C function's own work.
#[inline(never)]
pub(crate) fn turn(state: u64) -> u64 {
    // SAFETY: pure functions; the callback does not unwind.
    let state = unsafe { frameless_outer(rust_below_c, state, 10) };
    // SAFETY: a pure function.
    unsafe { frameless_leaf(state | 1, 10_000) ^ 3 }
}

extern "C" fn rust_below_c(state: u64) -> u64 {
    rust_leaf(black_box(state)) ^ 5
}

#[inline(never)]
fn rust_leaf(mut state: u64) -> u64 {
    for _ in 0..1_000 {
        state = black_box(state).rotate_left(7) ^ 0x9e37_79b9;
    }
    state
}
