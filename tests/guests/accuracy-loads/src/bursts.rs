//! Short bursts of work; the caller waits between them.

use crate::work::spin;

/// The function that does the work.
pub const FUNCTION: &str = "burst";

/// The steps between two clock reads: about a microsecond.
const BETWEEN_LOOKS: u32 = 400;

/// Works for `ns` of running time; returns the actual running time.
#[inline(never)]
pub fn burst(clock: &mut impl FnMut() -> u64, ns: u64) -> u64 {
    let begin = clock();
    let mut state = 1;
    loop {
        state = core::hint::black_box(spin(state, BETWEEN_LOOKS, 113));
        let ran = clock().saturating_sub(begin);
        if ran >= ns {
            return ran;
        }
    }
}
