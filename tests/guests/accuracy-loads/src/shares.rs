//! A dozen functions with known shares of the time.
//!
//! Each works in its own frame and calls nothing. Of 1,000 parts of the work `alder` does 220 and
//! `willow` 10. The true shares are the times measured around the calls, because parts are equal in
//! steps but only nearly equal in ns.

use core::hint::black_box;

use crate::meter::Meter;
use crate::work::spin;

/// Steps in a part: all 1,000 take about half a millisecond.
const PART: u32 = 200;

/// The number of functions.
pub const COUNT: usize = 12;

macro_rules! functions {
    ($($name:ident $parts:literal)*) => {
        /// The functions' names and their parts of 1,000, in the order of [`Meter::ns`].
        pub const FUNCTIONS: [(&str, u32); COUNT] = [$((stringify!($name), $parts)),*];

        const CALLS: [fn(u64) -> u64; COUNT] = [$($name),*];

        $(
            #[inline(never)]
            fn $name(state: u64) -> u64 {
                spin(state, $parts * PART, $parts)
            }
        )*
    };
}

functions! {
    alder 220
    birch 170
    cedar 130
    elder 105
    hazel 90
    holly 75
    larch 60
    maple 50
    oak 40
    pine 30
    rowan 20
    willow 10
}

/// Calls all functions once, in order, and measures each; about half a millisecond. Returns the
/// next `state`.
#[inline(never)]
pub fn turn(meter: &mut Meter<COUNT>, clock: &mut impl FnMut() -> u64, mut state: u64) -> u64 {
    for (kind, call) in CALLS.iter().enumerate() {
        state = meter.around(kind, clock, || black_box(*call)(state)) ^ 3;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_a_thousand() {
        let parts: u32 = FUNCTIONS.iter().map(|(_, parts)| parts).sum();
        assert_eq!(parts, 1000);
    }

    #[test]
    fn each_function_is_measured_as_its_own() {
        let mut now = 0;
        let mut clock = || {
            now += 1;
            now
        };
        let mut meter = Meter::new(&mut clock);
        let state = turn(&mut meter, &mut clock, 1);
        assert_ne!(turn(&mut meter, &mut clock, state), state);
        // Two clock reads per call, whose cost of 1 is subtracted: nothing is left.
        assert_eq!(meter.ns(), &[0; COUNT]);
    }
}
