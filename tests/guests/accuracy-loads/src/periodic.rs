//! A load synchronous with a clock: one function works in the first half of each period, another in
//! the second.

use crate::work::spin;

/// The steps between two clock reads: some microseconds.
const BETWEEN_LOOKS: u32 = 1_000;

/// The functions' names, in the order in which [`run`] calls them. Clock reads are made below them,
/// so compare their total time, not their self time.
pub const FUNCTIONS: [&str; 2] = ["first_half", "second_half"];

/// Runs `periods` periods of `period_ns` on the running-time clock; returns the running time of
/// each half in ns. Each period ends at a multiple of `period_ns` from the start, so nothing
/// drifts.
#[inline(never)]
pub fn run(clock: &mut impl FnMut() -> u64, period_ns: u64, periods: u64) -> [u64; 2] {
    let begin = clock();
    let mut ran = [0; 2];
    let mut now = begin;
    for period in 0..periods {
        let start = begin.saturating_add(period.saturating_mul(period_ns));
        let middle = first_half(clock, start.saturating_add(period_ns / 2));
        let end = second_half(clock, start.saturating_add(period_ns));
        ran[0] += middle.saturating_sub(now);
        ran[1] += end.saturating_sub(middle);
        now = end;
    }
    ran
}

/// Works until the clock has reached `until`; returns the clock.
#[inline(never)]
fn first_half(clock: &mut impl FnMut() -> u64, until: u64) -> u64 {
    let mut state = 1;
    loop {
        state = core::hint::black_box(spin(state, BETWEEN_LOOKS, 101));
        let now = clock();
        if now >= until {
            return now;
        }
    }
}

/// The same as a separate function.
#[inline(never)]
fn second_half(clock: &mut impl FnMut() -> u64, until: u64) -> u64 {
    let mut state = 1;
    loop {
        state = core::hint::black_box(spin(state, BETWEEN_LOOKS, 103));
        let now = clock();
        if now >= until {
            return now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The halves are equal, and an overshoot is compensated in the next one.
    #[test]
    fn periods_do_not_drift() {
        let mut now = 0;
        let mut clock = || {
            now += 30;
            now
        };
        let [first, second] = run(&mut clock, 1_000, 100);
        assert!((first + second).abs_diff(100_000) <= 30, "{first} {second}");
        assert!(first.abs_diff(50_000) < 3_100, "{first}");
    }
}
