//! The memory per distinct stack, with everything included: all stacks must fit the agent's memory.

use crate::fake::{self, distinct_stacks, sample_each};

const STACKS: usize = 20_000;

fn sample(memory_bytes: usize, times: impl Fn(usize) -> usize) -> fake::conversation::Fetched {
    sample_each(&distinct_stacks(STACKS), memory_bytes, times).unwrap().0
}

/// Guards the documented memory per stack: slot, nodes, index and the counts of both epochs
/// together must fit.
#[test]
fn twenty_thousand_stacks_fit_128_bytes_each() {
    let fetched = sample(128 * STACKS, |_| 1);
    assert_eq!(fetched.counters.overflow, 0);
    assert_eq!(fetched.stacks, STACKS as u64);
    assert_eq!(fetched.samples, STACKS as u64);
}

/// Guards counts that take more memory the higher they are.
#[test]
fn stacks_that_are_sampled_many_times_fit_128_bytes_each() {
    let times = |number| if number % 100 == 0 { 300 } else { 10 };
    let fetched = sample(128 * STACKS, times);
    let samples = (0..STACKS).map(times).sum::<usize>() as u64;
    assert_eq!(fetched.counters.overflow, 0);
    assert_eq!((fetched.stacks, fetched.samples), (STACKS as u64, samples));
}

/// The tests above must be able to fail: with half the memory not all stacks fit, and the others
/// are counted as overflow.
#[test]
fn what_does_not_fit_is_counted() {
    let fetched = sample(64 * STACKS, |_| 1);
    assert!(fetched.counters.overflow > 0);
    assert_eq!(fetched.stacks + fetched.counters.overflow, STACKS as u64, "held or refused");
}
