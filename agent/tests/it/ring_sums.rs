//! Every count has a record in the ring: over a whole recording, the records sum to the counters,
//! in each mode and in whatever life the guest leads.

use std::collections::HashMap;

use unikprof_agent::{minimum_bytes, ring_bytes};
use unikprof_proto::code::mode;
use unikprof_proto::message::{Counters, Start};
use unikprof_proto::ring::{Record, SAMPLE_LATE, Wait, kind, outcome};

use crate::client::{Client, Download, RING, one_ms, serve};
use crate::fake::stacks::Random;
use crate::fake_guest::{FakeAgent, agent_with_ring, block, deliver, on_stack, tick};

const MS: u64 = 1_000_000;
const MODES: [u32; 3] = [mode::CPU, mode::WALL, mode::OFF_CPU];

/// A guest with a ring that keeps everything, and memory for stacks of this size.
fn guest(memory: usize) -> (&'static FakeAgent, crate::fake_guest::Client) {
    let agent = agent_with_ring(1, memory, ring_bytes(1, 100_000));
    (agent, Client::connect(&serve(agent)))
}

fn records(client: &mut crate::fake_guest::Client) -> Vec<Record> {
    let (head, records, end) = client.ring(&RING);
    assert_eq!((head.oldest, end.lost), (0, 0), "the ring keeps everything");
    records.into_iter().map(|(_, record)| record).collect()
}

/// The counters of a recording as the ring's records sum to them, from its beginning to its end.
fn sums(records: &[Record], recording: u64) -> Counters {
    let began = |one: &Record| one.kind == kind::BEGAN && one.first == recording;
    let ended = |one: &Record| one.kind == kind::ENDED && one.first == recording;
    let from = records.iter().position(began).unwrap();
    let to = records.iter().position(ended).unwrap();
    let bit = 1 << records[from].second;
    let mut sums = Counters::default();
    for record in &records[from..to] {
        let count = match record.kind {
            kind::SAMPLE if record.second & bit != 0 => {
                sums.late += u64::from(record.second & SAMPLE_LATE != 0);
                &mut sums.recorded
            }
            kind::NO_SAMPLE if record.second & bit != 0 => match record.first {
                outcome::OVERFLOW => &mut sums.overflow,
                outcome::LOST => &mut sums.lost,
                outcome::MASKED => &mut sums.masked,
                _ => &mut sums.idle,
            },
            kind::WAIT => {
                let wait = Wait::from_number(record.third);
                if wait.ring_bits & bit as u8 != 0 {
                    sums.blocks += u64::from(wait.is_first);
                    let overflow = &mut sums.blocked_overflow;
                    let sum = if wait.is_overflow { overflow } else { &mut sums.blocked };
                    *sum += record.second;
                }
                continue;
            }
            _ => continue,
        };
        *count += 1;
        sums.ticks += 1;
    }
    sums
}

/// The part of the counters that records sum to.
fn told(counters: &Counters) -> Counters {
    let &Counters { ticks, overflow, lost, masked, idle, late, .. } = counters;
    let &Counters { blocks, blocked_overflow, .. } = counters;
    // What has aged since was recorded when its record was written.
    let blocked = counters.blocked + counters.blocked_aged;
    Counters {
        ticks,
        recorded: counters.recorded + counters.aged,
        overflow,
        lost,
        masked,
        idle,
        late,
        blocks,
        blocked,
        blocked_overflow,
        ..Counters::default()
    }
}

fn started(client: &mut crate::fake_guest::Client, name: &'static str, mode: u32) -> u64 {
    client.start(Start { name, mode, ..one_ms() })
}

fn stopped(client: &mut crate::fake_guest::Client, recording: u64) -> Download {
    let pending = client.stop(recording);
    assert!(pending.complete);
    let got = client.fetch(pending.first_epoch);
    client.acknowledge(pending.first_epoch);
    got
}

/// A vCPU that has woken waits for its CPU, and works inside of the block call: neither is blocked
/// time.
#[test]
fn a_wakes_record_has_the_blocked_time_that_was_counted() {
    let (agent, mut client) = guest(1 << 18);
    let recording = started(&mut client, "off-cpu", mode::OFF_CPU);
    for _ in 0..3 {
        on_stack(&[1, 2], |registers| agent.on_block(Some(registers)));
        agent.platform().idle(2 * MS);
        agent.platform().steal(3 * MS);
        agent.platform().run(MS);
        agent.on_wake();
    }
    agent.platform().run(1);
    let counters = stopped(&mut client, recording).counters;
    assert_eq!(counters.blocked, 6 * MS);
    assert_eq!(sums(&records(&mut client), recording), told(&counters));
}

/// A recording that ends inside of a wait must leave nothing of it to the next one, in which the
/// vCPU computes all the time.
#[test]
fn a_wait_that_a_recording_ends_in_is_not_the_next_ones() {
    for mode in [mode::WALL, mode::OFF_CPU] {
        let (agent, mut client) = guest(1 << 18);
        let first = started(&mut client, "first", mode);
        on_stack(&[1, 2], |registers| agent.on_block(Some(registers)));
        agent.platform().idle(50 * MS);
        let waited = stopped(&mut client, first).counters;
        agent.platform().idle(MS);
        agent.on_wake();
        let next = started(&mut client, "next", mode);
        (0..50).for_each(|_| {
            agent.platform().run(MS);
            deliver(agent, &[3, 2]);
        });
        let computed = stopped(&mut client, next).counters;
        let records = records(&mut client);
        assert!(waited.blocked > 0);
        assert_eq!(sums(&records, first), told(&waited), "{mode}");
        assert_eq!(sums(&records, next), told(&computed), "{mode}");
        assert_eq!(sums(&records, next).blocked, 0);
    }
}

/// Beside a recording of mode wall, whose stacks begin with a frame that says that the vCPU waits,
/// one of mode off-cpu has its own stacks.
#[test]
fn each_recording_has_its_own_record_of_a_wait() {
    let (agent, mut client) = guest(1 << 18);
    started(&mut client, "off-cpu", mode::OFF_CPU);
    started(&mut client, "wall", mode::WALL);
    block(agent, &[1, 2], 50 * MS);
    let records = records(&mut client);
    let waits = records.iter().filter(|record| record.kind == kind::WAIT);
    let by_bit: HashMap<u8, u64> =
        waits.map(|wait| (Wait::from_number(wait.third).ring_bits, wait.first)).collect();
    assert_eq!(by_bit.len(), 2);
    assert_ne!(by_bit[&1], by_bit[&2]);
}

/// A random life: work, waits in which the vCPU also runs or has no CPU, ticks that come late or
/// without registers, and recordings of all modes that begin, are dumped and end at any moment.
#[test]
fn whatever_the_life_the_records_sum_to_the_counters() {
    let mut seen = Counters::default();
    // The smaller memory is soon full of stacks.
    for (seed, memory) in (0..40).map(|seed| (seed, if seed % 2 == 0 { 1 << 18 } else { 0 })) {
        let memory = memory.max(minimum_bytes(1, 3));
        let (agent, mut client) = guest(memory);
        let mut random = Random::new(seed);
        let mut running: Vec<Running> = Vec::new();
        let mut ended: Vec<(u64, Counters)> = Vec::new();
        let mut blocked = false;
        for _ in 0..1_500 {
            let step = random.below(3 * MS) + 1;
            let stack: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(3_000)).collect();
            match random.below(16) {
                0 if running.len() < 3 => {
                    let is_free = |name: &&str| running.iter().all(|one| one.name != *name);
                    let name = ["a", "b", "c"].into_iter().find(is_free).unwrap();
                    let mode = MODES[random.below(3) as usize];
                    // Its own time may be over before it is stopped.
                    let duration_ns = if random.below(2) == 0 { 0 } else { step * 20 };
                    let period_ns = 100_000 + random.below(MS);
                    let start = Start { name, mode, duration_ns, period_ns, ..one_ms() };
                    let id = client.start(start);
                    running.push(Running {
                        id,
                        name,
                        ends: duration_ns != 0,
                        ..Running::default()
                    });
                }
                1 | 2 if !running.is_empty() => {
                    let at = random.below(running.len() as u64) as usize;
                    let one = &mut running[at];
                    let stops = one.ends || random.below(3) == 0;
                    let pending = if stops { client.stop(one.id) } else { client.dump(one.id) };
                    let epochs = pending.first_epoch..;
                    for epoch in epochs.take(pending.epochs as usize) {
                        one.sum = sum_of(&one.sum, &client.fetch(epoch).counters);
                        client.acknowledge(epoch);
                    }
                    if stops {
                        let one = running.remove(at);
                        ended.push((one.id, one.sum));
                    }
                }
                3..6 if !blocked => {
                    match random.below(4) {
                        0 => agent.on_block(None),
                        _ => on_stack(&stack, |registers| agent.on_block(Some(registers))),
                    }
                    blocked = true;
                }
                6..9 if blocked => {
                    agent.on_wake();
                    blocked = false;
                }
                9 => agent.platform().steal(step),
                10 => _ = agent.on_tick(None),
                11 if !blocked => _ = tick(agent, &stack),
                12 => _ = deliver(agent, &stack),
                13 => _ = client.advance(),
                // Some waits last for seconds.
                _ if blocked && random.below(50) == 0 => agent.platform().idle(step * 1_000),
                _ if blocked && random.below(4) != 0 => agent.platform().idle(step),
                _ => agent.platform().run(step),
            }
        }
        for one in running {
            let last = stopped(&mut client, one.id);
            ended.push((one.id, sum_of(&one.sum, &last.counters)));
        }
        let records = records(&mut client);
        for (recording, counters) in ended {
            assert_eq!(sums(&records, recording), told(&counters), "{seed}: {recording}");
            seen = sum_of(&seen, &counters);
        }
    }
    let Counters { late, masked, blocked, blocked_overflow, .. } = seen;
    assert!([late, masked, blocked, blocked_overflow].iter().all(|one| *one > 10), "{seen:?}");
}

/// A recording, and what was counted in the epochs that were fetched.
#[derive(Default)]
struct Running {
    id: u64,
    name: &'static str,
    /// Whether it ends by itself.
    ends: bool,
    sum: Counters,
}

fn sum_of(one: &Counters, other: &Counters) -> Counters {
    let (one, other) = (one.to_array(), other.to_array());
    Counters::from_array(std::array::from_fn(|at| one[at] + other[at]))
}
