//! The memory per distinct stack, with everything included: all stacks must fit the agent's memory.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod fake;

use std::collections::HashSet;
use std::mem::MaybeUninit;

use fake::CONFIG;
use fake::conversation::{Fetched, InProcess};
use fake::platform::FakePlatform;
use fake::stacks::{Random, Stack, any_stack};
use unikprof_agent::{Agent, MAX_DEPTH, Platform as _};

const STACKS: usize = 20_000;
const PERIOD_NS: u64 = 1_000_000;

/// Samples each stack in an agent with this much memory, `times` of its number times.
fn sample(stacks: &HashSet<Stack>, memory_bytes: usize, times: impl Fn(usize) -> usize) -> Fetched {
    let mut memory = vec![MaybeUninit::uninit(); memory_bytes];
    let agent = Agent::new(FakePlatform::new(MAX_DEPTH), CONFIG, &mut memory).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    client.start(PERIOD_NS).unwrap();
    for (number, stack) in stacks.iter().enumerate() {
        for _ in 0..times(number) {
            // Exactly when it is due: a late sample has an additional frame, and so is another stack.
            let now_ns = agent.platform().now_ns();
            agent.platform().advance(agent.deadline().unwrap() - now_ns);
            let registers = agent.platform().stack().lay(stack);
            agent.on_tick(Some(&registers));
        }
    }
    client.stop().unwrap()
}

fn stacks() -> HashSet<Stack> {
    let mut random = Random::new(7);
    let mut stacks = HashSet::new();
    while stacks.len() < STACKS {
        stacks.insert(any_stack(&mut random));
    }
    stacks
}

/// Guards the documented memory per stack: slot, nodes, index and the counts of both epochs
/// together must fit.
#[test]
fn twenty_thousand_stacks_fit_128_bytes_each() {
    let fetched = sample(&stacks(), 128 * STACKS, |_| 1);
    assert_eq!(fetched.counters.overflow, 0);
    assert_eq!(fetched.stacks, STACKS as u64);
    assert_eq!(fetched.samples, STACKS as u64);
}

/// Guards counts that take more memory the higher they are.
#[test]
fn stacks_that_are_sampled_many_times_fit_128_bytes_each() {
    let times = |number| if number % 100 == 0 { 300 } else { 10 };
    let fetched = sample(&stacks(), 128 * STACKS, times);
    let samples = (0..STACKS).map(times).sum::<usize>() as u64;
    assert_eq!(fetched.counters.overflow, 0);
    assert_eq!((fetched.stacks, fetched.samples), (STACKS as u64, samples));
}

/// The tests above must be able to fail: with half the memory not all stacks fit, and the others are
/// counted as overflow.
#[test]
fn what_does_not_fit_is_counted() {
    let fetched = sample(&stacks(), 64 * STACKS, |_| 1);
    assert!(fetched.counters.overflow > 0);
    assert_eq!(
        fetched.stacks + fetched.counters.overflow,
        STACKS as u64,
        "held or refused"
    );
}
