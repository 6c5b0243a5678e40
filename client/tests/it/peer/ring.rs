//! What happened when, as frames.

use unikprof_proto::frame::MAX_BODY;
use unikprof_proto::message::{
    EventName, EventNamesEnd, Nodes, RingEnd, RingHead, RingRun, StacksEnd,
};
use unikprof_proto::nodes::{self, Node};
use unikprof_proto::ring::{Encoder, Record, Wait, kind};

use super::{SEGMENT, encode};

pub fn record(kind: u8, at_ns: u64, first: u64, second: u64) -> Record {
    Record { kind, at_ns, first, second, third: 0 }
}

/// A wait of recording bit 0 that began and ended, of which so much was counted on a stack.
pub fn wait(from_ns: u64, to_ns: u64, stack: u64, count: u64) -> Record {
    let wait = Wait {
        ring_bits: 1,
        is_first: true,
        is_last: true,
        length_ns: to_ns - from_ns,
        ..Wait::default()
    };
    Record { third: wait.to_number(), ..record(kind::WAIT, to_ns, stack, count) }
}

/// The head of a ring that holds so many records from position `oldest` on.
pub fn head(vcpu: u32, oldest: u64, count: u64) -> RingHead {
    RingHead {
        vcpu,
        capacity: 1_000,
        oldest,
        next: oldest.saturating_add(count),
        now_ns: 2_000,
        wall_clock_ns: None,
    }
}

/// A run of records from a position on.
pub fn run(vcpu: u32, first: u64, records: &[Record]) -> Vec<u8> {
    let mut payload = vec![0; MAX_BODY - 64];
    let mut encoder = Encoder::new(0, &mut payload);
    records.iter().for_each(|record| encoder.push(*record));
    let length = encoder.finish();
    encode(&RingRun {
        vcpu,
        first,
        count: records.len() as u32,
        base_ns: 0,
        payload: &payload[..length],
    })
}

pub fn end(vcpu: u32, next: u64) -> Vec<u8> {
    end_since(vcpu, next, 0)
}

fn end_since(vcpu: u32, next: u64, whole_since_ns: u64) -> Vec<u8> {
    encode(&RingEnd { vcpu, next, lost: 0, whole_since_ns })
}

/// Records from the head to the end.
pub fn records(head: &RingHead, records: &[Record]) -> Vec<u8> {
    let run = run(head.vcpu, head.oldest, records);
    // Where some were evicted, all is told from the oldest on.
    let whole_since_ns = match head.oldest {
        0 => 0,
        _ => records.first().map_or(0, |first| first.at_ns),
    };
    let end = end_since(head.vcpu, head.next, whole_since_ns);
    [encode(head), run, end].concat()
}

/// The number of a ring's stack, of which the first is 1: they lie in the second segment, behind
/// those of epochs.
pub fn stack(at: u64) -> u64 {
    2 * SEGMENT + at - 1
}

/// Stacks of one node each, and their end.
pub fn stacks(vcpu: u32, stacks: &[&[u32]]) -> Vec<u8> {
    let mut payload = [0; 512];
    let mut encoder = nodes::Encoder::new(stack(1), &mut payload);
    for frames in stacks {
        encoder.push(Node { parent: 0, frames });
    }
    let length = encoder.finish();
    let count = stacks.len() as u32;
    [
        encode(&Nodes { vcpu, first: stack(1), count, payload: &payload[..length] }),
        encode(&StacksEnd { vcpu, oldest: SEGMENT, known: stack(stacks.len() as u64) }),
    ]
    .concat()
}

/// Names of events from id 0 on, and how many were refused.
pub fn names(names: &[&str], refused: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, name) in names.iter().enumerate() {
        bytes.extend(encode(&EventName { id: id as u32, name }));
    }
    let end = EventNamesEnd { names: names.len() as u32, refused };
    bytes.extend(encode(&end));
    bytes
}

/// A ring that fills up: so many records were written into it, of which it holds the newest; the
/// answer from a position on. Record `n` is a sample of the script's second node.
pub fn live(vcpu: u32, capacity: u64, written: u64, position: u64) -> Vec<u8> {
    let oldest = written.saturating_sub(capacity);
    let first = position.max(oldest);
    let sample = |at: u64| record(kind::SAMPLE, 1_000 + at * 10, super::number(2), 1);
    let records: Vec<Record> = (first..written).map(sample).collect();
    let head = RingHead {
        capacity,
        oldest,
        next: written,
        now_ns: 1_000 + written * 10,
        ..head(vcpu, 0, 0)
    };
    let run = if records.is_empty() { Vec::new() } else { run(vcpu, first, &records) };
    let since_ns = match oldest {
        0 => 0,
        _ => 1_000 + first * 10,
    };
    [encode(&head), run, end_since(vcpu, written, since_ns)].concat()
}
