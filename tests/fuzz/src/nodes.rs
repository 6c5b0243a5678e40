//! Stack nodes and counts: any bytes are decoded or refused, and any nodes and counts come back.

use unikprof_proto::counts::{self, MAX_PAIR_BYTES};
use unikprof_proto::nodes::{Encoder, MAX_FRAMES, MAX_NODE_BYTES, Node, decode};

use crate::input::Input;

type Owned = (u64, Vec<u32>);

/// Reads the bytes as an encoding, and makes nodes of them that are encoded.
pub fn check(bytes: &[u8]) {
    decoded(&mut Input::new(bytes));
    made_up(&mut Input::new(bytes));
    counted(&mut Input::new(bytes));
}

/// Numbers that a whole run can have.
fn first_number(input: &mut Input<'_>) -> u64 {
    input.number().clamp(1, u64::MAX - u64::from(u16::MAX))
}

fn decoded(input: &mut Input<'_>) {
    let first = first_number(input);
    let count = u32::from(input.short());
    let payload = input.bytes(usize::MAX);
    for hostile in [0, u64::MAX - 1, u64::MAX] {
        let _ = decode(hostile, count, payload, |number, node| {
            owned(number, node);
        });
    }
    let mut nodes = Vec::new();
    let result = decode(first, count, payload, |number, node| {
        assert_eq!(number, first.wrapping_add(nodes.len() as u64));
        nodes.push(owned(number, node));
    });
    // A node takes two bytes at least, so that a few bytes cannot pretend to be many nodes.
    assert!(nodes.len() * 2 <= payload.len());
    let mut buffer = vec![0; payload.len() + MAX_NODE_BYTES];
    let length = encode(first, &nodes, &mut buffer);
    if result.is_ok() {
        assert_eq!(nodes.len(), count as usize);
        assert!(length <= payload.len(), "no encoding is shorter");
    }
    assert_eq!(reread(first, nodes.len(), &buffer[..length]), nodes);
}

fn made_up(input: &mut Input<'_>) {
    let first = first_number(input);
    let mut nodes: Vec<Owned> = Vec::new();
    while !input.is_empty() {
        let number = first + nodes.len() as u64;
        let back = input.number().clamp(1, number);
        let length = 1 + input.below(MAX_FRAMES);
        let frames = (0..length).map(|_| (input.number() as u32).max(1));
        nodes.push((number - back, frames.collect()));
    }
    for (index, node) in nodes.iter().enumerate() {
        let mut alone = [0; MAX_NODE_BYTES];
        let number = first + index as u64;
        let length = encode(number, std::slice::from_ref(node), &mut alone);
        assert!((2..=MAX_NODE_BYTES).contains(&length));
    }
    let mut buffer = vec![0; nodes.len() * MAX_NODE_BYTES];
    let length = encode(first, &nodes, &mut buffer);
    assert_eq!(reread(first, nodes.len(), &buffer[..length]), nodes);
}

fn encode(first: u64, nodes: &[Owned], buffer: &mut [u8]) -> usize {
    let mut encoder = Encoder::new(first, buffer);
    for (parent, frames) in nodes {
        assert!(encoder.has_room());
        encoder.push(Node { parent: *parent, frames });
    }
    encoder.finish()
}

fn reread(first: u64, count: usize, bytes: &[u8]) -> Vec<Owned> {
    let mut nodes = Vec::new();
    let result = decode(first, count as u32, bytes, |number, node| nodes.push(owned(number, node)));
    assert_eq!(result, Ok(()), "{nodes:?}");
    nodes
}

fn owned(number: u64, node: Node<'_>) -> Owned {
    assert!(node.parent == 0 || node.parent < number, "a parent comes before its children");
    assert!((1..=MAX_FRAMES).contains(&node.frames.len()));
    assert!(!node.frames.contains(&0), "no frame is none");
    (node.parent, node.frames.to_vec())
}

/// Reads the bytes as a run of counts; what could be read comes back.
fn counted(input: &mut Input<'_>) {
    let after = input.number();
    let count = u32::from(input.short());
    let payload = input.bytes(usize::MAX);
    let mut pairs = Vec::new();
    let result = counts::decode(after, count, payload, |number, count| {
        pairs.push((number, count));
    });
    assert!(pairs.len() * 2 <= payload.len());
    assert!(pairs.is_sorted_by(|(one, _), (next, _)| one < next));
    assert!(pairs.iter().all(|(number, count)| *number > after && *count > 0));
    let mut buffer = vec![0; pairs.len() * MAX_PAIR_BYTES];
    let mut encoder = counts::Encoder::new(after, &mut buffer);
    for (number, count) in &pairs {
        assert!(encoder.has_room());
        encoder.push(*number, *count);
    }
    let length = encoder.finish();
    if result.is_ok() {
        assert_eq!(pairs.len(), count as usize);
        assert!(length <= payload.len(), "no encoding is shorter");
    }
    let mut again = Vec::new();
    let reread = counts::decode(after, pairs.len() as u32, &buffer[..length], |number, count| {
        again.push((number, count));
    });
    assert_eq!((reread, again), (Ok(()), pairs));
}
