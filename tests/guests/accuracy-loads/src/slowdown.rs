//! A function that can be slowed down by a known percentage, and an unchanged one.

use crate::meter::Meter;
use crate::work::spin;

/// The functions' names, in the order of [`Meter::ns`].
pub const FUNCTIONS: [&str; 2] = ["adjustable", "steady"];

/// The steps of `steady`, and of `adjustable` if it is not slowed down: about 100 µs and 50 µs.
const STEADY: u32 = 40_000;
const ADJUSTABLE: u32 = 20_000;

/// Calls each function once, the first one slowed down by `slower_percent`.
#[inline(never)]
pub fn turn(
    meter: &mut Meter<2>,
    clock: &mut impl FnMut() -> u64,
    state: u64,
    slower_percent: u32,
) -> u64 {
    let steps = (u64::from(ADJUSTABLE) * (100 + u64::from(slower_percent)) / 100) as u32;
    let state = meter.around(0, clock, || adjustable(state, steps)) ^ 3;
    meter.around(1, clock, || steady(state)) ^ 5
}

#[inline(never)]
fn adjustable(state: u64, steps: u32) -> u64 {
    spin(state, steps, 107)
}

#[inline(never)]
fn steady(state: u64) -> u64 {
    spin(state, STEADY, 109)
}
