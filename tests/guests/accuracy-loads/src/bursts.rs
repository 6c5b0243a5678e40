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

/// Gaps between clock reads: the machine below ran something else, did not say so, and delivered no
/// timer.
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    /// Their number.
    pub count: u64,
    /// Their time in ns.
    pub ns: u64,
    least_ns: u64,
    last_ns: u64,
}

impl Gaps {
    /// More than `least_ns` between two reads is a gap; the clock is at `now_ns`.
    pub fn new(least_ns: u64, now_ns: u64) -> Self {
        Self { count: 0, ns: 0, least_ns, last_ns: now_ns }
    }

    /// Takes note of a clock read, and returns it.
    pub fn note(&mut self, now_ns: u64) -> u64 {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        if gap_ns > self.least_ns {
            self.count += 1;
            self.ns += gap_ns;
        }
        self.last_ns = now_ns;
        now_ns
    }
}
