//! Downloads over bad lines must be complete and right, or fail with an error.

use std::cell::Cell;

use crate::network::{End, Faults, Faulty, Port, Stacks, World, ipv4};
use smoltcp::phy::{Device, Medium};
use unikprof_agent::tcp_server::smoltcp;
use unikprof_proto::code::refusal;
use unikprof_proto::frame::FrameError;

const SECOND: u64 = 1_000_000_000;
/// Stacks of about 60 KiB on the wire: some 45 full segments.
const STACKS: u32 = 3_000;

/// Samples, stops and downloads, with as many connections as necessary; returns why each failed
/// download failed.
///
/// Whatever the line does, the recording continues, the epoch waits, and in the end one download
/// contains exactly what was sampled.
fn record<D: Device>(world: &mut World<D>, attempts: u32) -> Vec<End> {
    let truth = insist(world, |world, client| {
        // Start cannot be repeated: if its answer was lost, the recording runs already.
        match world.start(client) {
            Ok(()) | Err(End::Refused(refusal::ALREADY_RECORDING)) => Ok(()),
            Err(end) => Err(end),
        }
    })
    .map(|()| world.sample(2 * STACKS, STACKS));
    let truth: Stacks = truth.expect("a recording starts");
    let epoch = insist(world, World::stop).expect("a recording ends");
    let mut failures = Vec::new();
    for _ in 0..attempts {
        let client = world.connect();
        let fetched = world.fetch(client, epoch);
        world.peers[client].abort();
        match fetched {
            Ok(stacks) => {
                assert_eq!(stacks, truth, "a wrong download");
                return failures;
            }
            Err(end) => failures.push(end),
        }
        world.wait(3 * SECOND);
    }
    panic!("no download in {attempts} attempts: {failures:?}");
}

/// Sends a request on one connection after another until it is answered.
fn insist<D: Device, T>(
    world: &mut World<D>,
    ask: impl Fn(&mut World<D>, usize) -> Result<T, End>,
) -> Option<T> {
    (0..20).find_map(|_| {
        let client = world.connect();
        let answer = ask(world, client);
        world.peers[client].abort();
        world.wait(3 * SECOND);
        answer.ok()
    })
}

/// A line with the same faults at both ends, with different seeds.
fn bad_line(faults: Faults, seed: u64) -> World<Faulty<Port>> {
    let next = Cell::new(seed << 8);
    World::with(Medium::Ethernet, ipv4, move |port| {
        next.set(next.get() + 1);
        Faulty::new(port, faults, next.get())
    })
}

#[test]
fn everything_at_once_is_repaired() {
    for seed in 1..=8 {
        let faults = Faults { lost: 30, doubled: 100, held: 200, swapped: 0 };
        record(&mut bad_line(faults, seed), 20);
    }
}

/// The frames' own checksums must detect damage that TCP does not see, on both sides.
#[test]
fn damage_that_tcp_cannot_see_is_never_believed() {
    let mut failures = Vec::new();
    for seed in 1..=12 {
        let faults = Faults { swapped: 15, ..Faults::default() };
        failures.extend(record(&mut bad_line(faults, seed), 60));
    }
    let checksum = |end: &End| matches!(end, End::Frame(FrameError::Checksum(_)));
    assert!(failures.iter().any(checksum), "nothing was damaged: {failures:?}");
}
