//! Short bursts of work; what lies between them is the caller's affair.

use crate::work::spin;

/// The function that does the work.
pub const FUNCTION: &str = "burst";

/// Steps between two looks at the clock: about a microsecond.
const BETWEEN_LOOKS: u32 = 400;

/// Works for `ns` of running time; answers how long it was.
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
