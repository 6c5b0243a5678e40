//! Stack nodes: the compact encoding of call stacks.
//!
//! A guest keeps the stacks of each vCPU as trees. A node holds a run of frames and refers to its
//! parent, which continues towards the root; a stack is a node with all its ancestors.
//!
//! The nodes of a vCPU are stored in *segments*, which are filled one after the other, and
//! discarded as a whole. A node's **number** is `birth × segment_nodes + index`: the birth counts
//! the segments that were begun on this vCPU, from 1; the index is that of the node in its segment,
//! from 0. Numbers are never reused within one [instance](crate::message::Welcome::instance) of the
//! agent. A node and its ancestors are in the same segment, and a parent's number is smaller than
//! its children's. A client that has all nodes up to a number lacks only those above it.
//!
//! A run of nodes with consecutive numbers is encoded as follows, each node depending on those
//! before it:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | bits 0 to 3: the number of frames; bit 4: same parent as the node before; bits 5 to 7: zero |
//! | varint | number − parent's number, 0 for a root, unless bit 4 is set |
//! | varint each | the frames, root-most first: 0 = as predicted, else 1 + zigzag(code − the caller's code) |
//!
//! The prediction is the last frame that had the same caller, from a table of 256 entries indexed
//! by a hash of the caller. A program calls the same functions again and again, so most frames take
//! one byte. For the root-most frame of a node, the low half of the parent's number, negated, takes
//! the place of the caller. Every run begins with an empty table, so that runs can be decoded
//! independently.
//!
//! Varints are LEB128, as in postcard.

use crate::run::{self, InvalidRun};
use crate::varint::{Input, Output, unzigzag, zigzag};

/// The maximum number of frames in a node.
pub const MAX_FRAMES: usize = 15;

/// The maximum length of a node in bytes.
pub const MAX_NODE_BYTES: usize = 1 + 10 + MAX_FRAMES * 5;

/// A node, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// The number of the node towards the root; 0 if this one holds the root.
    pub parent: u64,
    /// The frame codes, leaf first; 1 to [`MAX_FRAMES`] of them, none is zero.
    pub frames: &'a [u32],
}

/// The name of a run's items in errors.
const ITEM: &str = "stack node";

/// The state of a run, the same in encoder and decoder.
struct Memory {
    number: u64,
    parent: u64,
    /// The root-most frame of the previous node.
    root: u32,
    followed: [u32; 256],
}

impl Memory {
    fn new(first: u64) -> Self {
        Self { number: first, parent: 0, root: 0, followed: [0; 256] }
    }

    /// Used as the caller of a node's root-most frame.
    fn above_root(&self) -> u32 {
        (self.parent as u32).wrapping_neg()
    }

    fn prediction(&mut self, caller: u32) -> &mut u32 {
        &mut self.followed[(caller.wrapping_mul(0x9e37_79b1) >> 24) as usize]
    }
}

/// Encodes a run of nodes into a buffer.
pub struct Encoder<'a> {
    memory: Memory,
    output: Output<'a>,
}

impl<'a> Encoder<'a> {
    /// Begins a run whose first node has the number `first`.
    pub fn new(first: u64, buffer: &'a mut [u8]) -> Self {
        Self { memory: Memory::new(first), output: Output::new(buffer) }
    }

    /// Whether another node certainly fits.
    pub fn has_room(&self) -> bool {
        self.output.room() >= MAX_NODE_BYTES
    }

    /// Adds the next node. Call it only while there [is room](Self::has_room), and with 1 to
    /// [`MAX_FRAMES`] frames: bytes that do not fit are dropped, and decoding then fails.
    pub fn push(&mut self, node: Node<'_>) {
        let Self { memory, output } = self;
        let same_parent = node.parent == memory.parent;
        output.byte(node.frames.len() as u8 | u8::from(same_parent) << 4);
        if !same_parent {
            output.varint(match node.parent {
                0 => 0,
                parent => memory.number.wrapping_sub(parent),
            });
            memory.parent = node.parent;
        }
        let (mut caller, mut base) = (memory.above_root(), memory.root);
        memory.root = node.frames.last().copied().unwrap_or(0);
        for &frame in node.frames.iter().rev() {
            let predicted = memory.prediction(caller);
            if *predicted == frame {
                output.byte(0);
            } else {
                *predicted = frame;
                output.varint(1 + zigzag(i64::from(frame) - i64::from(base)));
            }
            (caller, base) = (frame, frame);
        }
        memory.number = memory.number.wrapping_add(1);
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Decodes a run of `count` nodes whose first has the number `first`, and passes each with its
/// number to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid node, after `visit` has seen those before it.
pub fn decode(
    first: u64,
    count: u32,
    payload: &[u8],
    mut visit: impl FnMut(u64, Node<'_>),
) -> Result<(), InvalidRun> {
    let mut memory = Memory::new(first);
    let mut input = Input { bytes: payload };
    for _ in 0..count {
        let number = memory.number;
        let cut = InvalidRun::Cut(ITEM, number);
        let impossible = InvalidRun::Impossible(ITEM, number);
        let head = input.byte().ok_or(cut)?;
        let length = usize::from(head & 0x0f);
        if length == 0 || head & 0xe0 != 0 {
            return Err(impossible);
        }
        if head & 0x10 == 0 {
            let back = input.varint().ok_or(cut)?;
            memory.parent = match back {
                0 => 0,
                back => number.checked_sub(back).ok_or(impossible)?,
            };
            if back != 0 && memory.parent == 0 {
                return Err(impossible);
            }
        }
        let mut frames = [0; MAX_FRAMES];
        let (mut caller, mut base) = (memory.above_root(), memory.root);
        for frame in frames[..length].iter_mut().rev() {
            let token = input.varint().ok_or(cut)?;
            let predicted = memory.prediction(caller);
            if token > 0 {
                let code = i64::from(base).checked_add(unzigzag(token - 1)).ok_or(impossible)?;
                *predicted = u32::try_from(code).map_err(|_| impossible)?;
            }
            if *predicted == 0 {
                return Err(impossible);
            }
            *frame = *predicted;
            (caller, base) = (*predicted, *predicted);
        }
        memory.root = frames[length - 1];
        visit(number, Node { parent: memory.parent, frames: &frames[..length] });
        memory.number = number.checked_add(1).ok_or(impossible)?;
    }
    run::end(ITEM, input.bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    type Owned = (u64, Vec<u32>);

    fn round_trip(first: u64, nodes: &[Owned]) -> (usize, Vec<Owned>) {
        let mut buffer = [0; 4096];
        let mut encoder = Encoder::new(first, &mut buffer);
        for (parent, frames) in nodes {
            assert!(encoder.has_room());
            encoder.push(Node { parent: *parent, frames });
        }
        let length = encoder.finish();
        let mut back = Vec::new();
        decode(first, nodes.len() as u32, &buffer[..length], |_, node| {
            back.push((node.parent, node.frames.to_vec()));
        })
        .unwrap();
        (length, back)
    }

    #[test]
    fn extremes_come_back() {
        let nodes = [
            (0, std::vec![1]),
            (9, std::vec![u32::MAX, 1, u32::MAX]),
            (9, (1..=15).collect()),
            (11, std::vec![16; 15]),
            (0, std::vec![16]),
        ];
        assert_eq!(round_trip(10, &nodes).1, nodes);
        let far = [(1 << 40, std::vec![7]), (0, std::vec![7])];
        assert_eq!(round_trip(u64::MAX - 3, &far).1, far);
        let last = [(u64::MAX - 2, std::vec![u32::MAX])];
        assert_eq!(round_trip(u64::MAX - 1, &last).1, last);
    }

    /// A second stack with the same callers must take one byte per frame.
    #[test]
    fn repeated_frames_take_one_byte() {
        let frames = std::vec![0x1010, 0x9020, 0x3030, 0x8888];
        let (once, _) = round_trip(1 << 20, &[(0, frames.clone())]);
        let mut other = frames.clone();
        other[0] = 0x1099;
        let (twice, back) = round_trip(1 << 20, &[(0, frames.clone()), (0, other.clone())]);
        assert_eq!(back, [(0, frames), (0, other)]);
        assert_eq!(twice - once, 1 + 3 + 3, "head, three predicted, one new");
    }

    #[test]
    fn hostile_runs_are_errors() {
        let decode = |bytes: &[u8]| decode(1, 1, bytes, |_, _| ());
        let invalid: [(&[u8], &str); 6] = [
            (&[0x10], "no frames"),
            (&[0x31, 3], "reserved bits"),
            (&[0x01, 2, 3], "parent before 0"),
            (&[0x01, 1, 3], "a parent with the number 0"),
            (&[0x11, 0], "nothing predicted yet"),
            (&[0x11, 2], "a code below zero"),
        ];
        for (bytes, why) in invalid {
            let expected = Err(InvalidRun::Impossible(ITEM, 1));
            assert_eq!(decode(bytes), expected, "{why}");
        }
        for cut in [&[][..], &[0x11, 0xff]] {
            assert_eq!(decode(cut), Err(InvalidRun::Cut(ITEM, 1)));
        }
        let left = decode(&[0x11, 3, 9]);
        assert_eq!(left, Err(InvalidRun::LeftOver(ITEM, 1)));
    }

    /// The format on the wire and on disk: change it only under new message types.
    #[test]
    fn golden() {
        let mut buffer = [0; 256];
        let mut encoder = Encoder::new(1000, &mut buffer);
        encoder.push(Node { parent: 0, frames: &[300, 20, 16] });
        encoder.push(Node { parent: 1000, frames: &[21, 300] });
        let length = encoder.finish();
        let expected = [
            0x13, 33, 9, 0xb1, 0x04, // three frames, a root as what comes before a run is
            0x02, 1, 0xb9, 0x04, 0xae, 0x04, // two frames, one node back
        ];
        assert_eq!(buffer[..length], expected, "{:#04x?}", &buffer[..length]);
    }
}
