//! Functions with known shares of the work, for tests of a profile's order, callers and lines.
//!
//! Of 1,000 parts:
//!
//! | caller | functions |
//! |---|---|
//! | `winter` | `december` 220, `january` 170, `february` 130 |
//! | `spring` | `march` 100, `april` 85, `may` 65, `equinox` 45 |
//! | `summer` | `june` 50, `july` 40, `august` 30 |
//! | `autumn` | `september` 25, `october` 15, `november` 10, `equinox` 15 |
//!
//! `year` calls the four callers. Each function works in its own frame, the three of winter on
//! lines of their own, and calls nothing; only `equinox` has its work inlined, from [`step`]. A
//! caller modifies each result, so that no call becomes a tail jump.

use core::hint::black_box;

/// The steps in one part: a year takes some tens of thousands, a fraction of a millisecond.
const PART: u32 = 20;

/// All 1,000 parts.
#[inline(never)]
pub(crate) fn year(state: u64) -> u64 {
    let state = winter(black_box(state));
    let state = spring(state);
    let state = summer(state);
    autumn(state) | 1
}

#[inline(never)]
fn winter(state: u64) -> u64 {
    let state = december(state);
    let state = january(state);
    february(state) ^ 3
}

#[inline(never)]
fn spring(state: u64) -> u64 {
    let state = march(state);
    let state = april(state);
    let state = may(state);
    equinox(state, 45) ^ 5
}

#[inline(never)]
fn summer(state: u64) -> u64 {
    let state = june(state);
    let state = july(state);
    august(state) ^ 7
}

#[inline(never)]
fn autumn(state: u64) -> u64 {
    let state = september(state);
    let state = october(state);
    let state = november(state);
    equinox(state, 15) ^ 9
}

#[inline(never)]
fn december(mut state: u64) -> u64 {
    for _ in 0..220 * PART {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state = state.wrapping_add(220);
    }
    state
}

#[inline(never)]
fn january(mut state: u64) -> u64 {
    for _ in 0..170 * PART {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state = state.wrapping_add(170);
    }
    state
}

#[inline(never)]
fn february(mut state: u64) -> u64 {
    for _ in 0..130 * PART {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state = state.wrapping_add(130);
    }
    state
}

/// The same, where the lines are not looked at.
macro_rules! months {
    ($($name:ident $parts:literal)*) => {$(
        #[inline(never)]
        fn $name(mut state: u64) -> u64 {
            for _ in 0..$parts * PART {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state = state.wrapping_add($parts);
            }
            state
        }
    )*};
}

months! { march 100 april 85 may 65 june 50 july 40 august 30 september 25 october 15 november 10 }

/// Called from two places, three times as long from the first.
#[inline(never)]
fn equinox(mut state: u64, parts: u32) -> u64 {
    for _ in 0..parts * PART {
        state = step(state);
    }
    state
}

/// A step of Marsaglia's xorshift generator. The constants prevent the compiler from merging equal
/// functions.
#[inline(always)]
fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state.wrapping_add(60)
}
