//! Stack nodes: any bytes are decoded or refused, and any nodes come back.

use unikprof_proto::nodes::{Encoder, MAX_FRAMES, MAX_NODE_BYTES, Node, decode};

use crate::input::Input;

type Owned = (u32, Vec<u32>, u64);

/// Reads the bytes as an encoding, and makes nodes of them that are encoded.
pub fn check(bytes: &[u8]) {
    decoded(&mut Input::new(bytes));
    made_up(&mut Input::new(bytes));
}

/// Ids that a whole run can have.
fn first_id(input: &mut Input<'_>) -> u32 {
    (input.number() as u32).clamp(1, u32::MAX - u32::from(u16::MAX))
}

fn decoded(input: &mut Input<'_>) {
    let first = first_id(input);
    let count = u32::from(input.short());
    let payload = input.bytes(usize::MAX);
    for hostile in [0, u32::MAX - 1, u32::MAX] {
        let _ = decode(hostile, count, payload, |id, node| {
            owned(id, node);
        });
    }
    let mut nodes = Vec::new();
    let result = decode(first, count, payload, |id, node| {
        assert_eq!(id, first.wrapping_add(nodes.len() as u32));
        nodes.push(owned(id, node));
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
    let first = first_id(input);
    let mut nodes: Vec<Owned> = Vec::new();
    while !input.is_empty() {
        let id = first + nodes.len() as u32;
        let back = (input.number() as u32).clamp(1, id);
        let length = 1 + input.below(MAX_FRAMES);
        let frames = (0..length).map(|_| (input.number() as u32).max(1));
        nodes.push((id - back, frames.collect(), input.number()));
    }
    for (index, node) in nodes.iter().enumerate() {
        let mut alone = [0; MAX_NODE_BYTES];
        let id = first + index as u32;
        let length = encode(id, std::slice::from_ref(node), &mut alone);
        assert!((2..=MAX_NODE_BYTES).contains(&length));
    }
    let mut buffer = vec![0; nodes.len() * MAX_NODE_BYTES];
    let length = encode(first, &nodes, &mut buffer);
    assert_eq!(reread(first, nodes.len(), &buffer[..length]), nodes);
}

fn encode(first: u32, nodes: &[Owned], buffer: &mut [u8]) -> usize {
    let mut encoder = Encoder::new(first, buffer);
    for (parent, frames, count) in nodes {
        assert!(encoder.has_room());
        encoder.push(Node {
            parent: *parent,
            frames,
            count: *count,
        });
    }
    encoder.finish()
}

fn reread(first: u32, count: usize, bytes: &[u8]) -> Vec<Owned> {
    let mut nodes = Vec::new();
    let result = decode(first, count as u32, bytes, |id, node| {
        nodes.push(owned(id, node))
    });
    assert_eq!(result, Ok(()), "{nodes:?}");
    nodes
}

fn owned(id: u32, node: Node<'_>) -> Owned {
    assert!(node.parent < id, "a parent comes before its children");
    assert!((1..=MAX_FRAMES).contains(&node.frames.len()));
    assert!(!node.frames.contains(&0), "no frame is none");
    (node.parent, node.frames.to_vec(), node.count)
}
