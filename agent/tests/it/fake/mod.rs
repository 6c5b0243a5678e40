//! Shared by measuring tests and benches: generated stacks, a platform without clocks for walking
//! them, and a client that counts the samples.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

pub(crate) mod conversation;
pub(crate) mod platform;
pub(crate) mod stacks;

use std::collections::HashSet;
use std::mem::MaybeUninit;

use conversation::{Fetched, InProcess};
use platform::FakePlatform;
use stacks::{Random, Stack, any_stack};
use unikprof_agent::{Agent, Config, MAX_DEPTH, Platform as _};

/// One vCPU, one recording, [`stacks::MAPPING`].
pub(crate) const CONFIG: Config<'static> = Config {
    vcpus: 1,
    recordings: 1,
    mappings: &[stacks::MAPPING],
    guest_name: None,
    guest_id: None,
    platform_name: "fake",
    reachable_when_busy: false,
};

/// So many distinct stacks.
pub(crate) fn distinct_stacks(count: usize) -> HashSet<Stack> {
    let mut random = Random::new(7);
    let mut stacks = HashSet::new();
    while stacks.len() < count {
        stacks.insert(any_stack(&mut random));
    }
    stacks
}

/// Samples each stack `times` of its number times, in an agent with this much memory. Returns also
/// the agent's capacity in stack nodes.
pub(crate) fn sample_each(
    stacks: &HashSet<Stack>,
    memory_bytes: usize,
    times: impl Fn(usize) -> usize,
) -> conversation::Result<(Fetched, u64)> {
    let mut memory = vec![MaybeUninit::uninit(); memory_bytes];
    let agent = Agent::new(FakePlatform::new(MAX_DEPTH), CONFIG, &mut memory)?;
    let mut client = InProcess::connect(&agent)?;
    client.start(1_000_000)?;
    for (number, stack) in stacks.iter().enumerate() {
        for _ in 0..times(number) {
            // Exactly when it is due: a late sample has an additional frame, and so is another
            // stack.
            let now_ns = agent.platform().now_ns();
            let due_ns = agent.deadline().ok_or("nothing is sampled")?;
            agent.platform().advance(due_ns - now_ns);
            agent.on_tick(Some(&agent.platform().stack().lay(stack)));
        }
    }
    let capacity = client.check()?.1;
    Ok((client.stop()?, capacity))
}
