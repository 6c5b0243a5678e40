//! A loop that computes a little and writes a line to the console, for as long as it may. What
//! keeps it from being fast is not in its code: a trace shows it.

use core::hint::black_box;

use crate::println;

/// The loop's state.
pub(crate) struct Chatter {
    state: u64,
    iterations: u64,
}

impl Chatter {
    pub(crate) fn new() -> Self {
        Self { state: 1, iterations: 0 }
    }

    /// One iteration.
    #[inline(never)]
    pub(crate) fn iteration(&mut self) {
        self.iterations += 1;
        self.state = compute(self.state);
        report(self.iterations, self.state);
        // Not a tail call.
        black_box(self.iterations);
    }
}

#[inline(never)]
fn compute(mut state: u64) -> u64 {
    for _ in 0..2000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state)
}

#[inline(never)]
fn report(iteration: u64, state: u64) {
    println!("chatter: iteration {iteration}, state {state:#018x}");
    // Not a tail call.
    black_box(iteration);
}
