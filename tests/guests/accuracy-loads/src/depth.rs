//! A stack of a known depth.

use core::hint::black_box;

use crate::work::spin;

/// The function that calls itself, and the one at the bottom that works.
pub const FUNCTIONS: [&str; 2] = ["descend", "bottom"];

/// Calls itself `depth` times, then works `steps` steps of about 3 ns.
#[inline(never)]
pub fn descend(depth: u32, steps: u32) -> u64 {
    if depth == 0 {
        return bottom(steps) ^ 7;
    }
    // Not a tail call: the frame stays.
    black_box(descend(depth - 1, steps)) ^ u64::from(depth)
}

#[inline(never)]
fn bottom(steps: u32) -> u64 {
    spin(1, steps, 127)
}
