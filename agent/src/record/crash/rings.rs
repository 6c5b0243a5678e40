//! A vCPU's ring as a crash leaves it: the newest records first, and before each part of them the stacks that it
//! names. What is left of it where its end is lost tells of the last moments, with their stacks.

use unikprof_proto::message::{Nodes, RingEnd, RingHead, RingRun, StacksEnd};
use unikprof_proto::ring::{decode, kind};

use super::{FRAME, Output};
use crate::agent::Agent;
use crate::count::table::Table;
use crate::ground::platform::Platform;
use crate::record::ring_answer::OVERHEAD;
use crate::ring::{Reader, Ring, Rings, Run};

/// The most records in the first part; each that follows may have twice as many, up to the most in any. So the first
/// stacks are soon behind. The most bytes are few: a crash may come on a small stack.
const FIRST_PART: u64 = 8;
const PART: u64 = 128;
const PART_BYTES: usize = 512;

const _: () = assert!(PART_BYTES + OVERHEAD <= FRAME, "a part fits a frame");

/// The fewest nodes that are told at once, as a power of two: about a frame of them.
const BLOCK_SHIFT: u32 = 4;
/// The most blocks that a table is divided into.
const BLOCKS: u32 = 4096;

/// Which stacks were told, block by block of a table's nodes.
struct Told {
    bits: [u64; BLOCKS as usize / 64],
    /// A block has so many nodes, as a power of two.
    shift: u32,
}

impl<P: Platform> Agent<'_, P> {
    /// Hands out a vCPU's ring with its stacks, of the `newest` records; answers whether older ones are left out.
    pub(super) fn write_ring(
        &self,
        rings: &Rings<'_>,
        vcpu: u32,
        newest: u64,
        output: &mut Output<'_>,
    ) -> bool {
        let (Some(ring), Some(slot)) = (rings.ring(vcpu), self.slot(vcpu)) else {
            return false;
        };
        // Other vCPUs may go on, and clear the stacks: whether so is asked between the stacks and the records that
        // name them, and before the ring is looked at.
        let cleared = self.cleared();
        let next = ring.next();
        let held = ring.oldest().min(next);
        let oldest = next.saturating_sub(newest).max(held);
        output.put(&RingHead {
            vcpu,
            capacity: ring.capacity(),
            oldest: held,
            next,
            now_ns: self.platform().now_ns(),
            wall_clock_ns: self.platform().wall_clock_ns(),
            cleared,
        });
        let mut told = Told::none(&slot.table);
        let mut whole_since_ns = None;
        let mut payload = [0; PART_BYTES];
        let (mut end, mut most) = (next, FIRST_PART);
        while end > oldest {
            let least = end.saturating_sub(most).max(oldest);
            let (start, part) = part(&ring, least, end, &mut payload);
            most = PART.min(most * 2);
            end = start;
            let Some((run, since_ns)) = part else {
                continue;
            };
            let payload = payload.get(..run.bytes).unwrap_or_default();
            let decoded = decode(run.base_ns, run.count, payload, |record| {
                if matches!(record.kind, kind::SAMPLE | kind::BLOCK) {
                    told.tell(record.first, vcpu, &slot.table, output);
                }
            });
            if decoded.is_err() || self.cleared() != cleared {
                break;
            }
            whole_since_ns = since_ns.or(whole_since_ns);
            output.put(&RingRun {
                vcpu,
                first: run.first,
                count: run.count,
                base_ns: run.base_ns,
                payload,
            });
        }
        output.put(&RingEnd {
            vcpu,
            next,
            lost: rings.lost(vcpu),
            whole_since_ns: whole_since_ns.unwrap_or_else(|| self.platform().now_ns()),
        });
        output.put(&StacksEnd {
            vcpu,
            nodes: slot.table.used(),
            cleared,
        });
        oldest > held
    }
}

/// The records from `start` to `end`, the last of them that fit, with where they begin and from when on none is missing. Without any where the
/// one before `end` cannot be read.
fn part(
    ring: &Ring<'_>,
    mut start: u64,
    end: u64,
    payload: &mut [u8],
) -> (u64, Option<(Run, Option<u64>)>) {
    while start < end {
        let mut reader = Reader::new(ring, start, 0).no_wait().up_to(end);
        match reader.run(ring, payload) {
            Some(run) if run.first.saturating_add(u64::from(run.count)) == end => {
                return (run.first, Some((run, reader.whole_since_ns())));
            }
            // Too many, or one between them cannot be read: the later half.
            Some(_) => start = start.saturating_add((end - start).div_ceil(2)),
            None => break,
        }
    }
    (end.saturating_sub(1), None)
}

impl Told {
    fn none(table: &Table<'_>) -> Self {
        let blocks = table.capacity() >> BLOCK_SHIFT;
        Self {
            bits: [0; BLOCKS as usize / 64],
            shift: BLOCK_SHIFT + (blocks / BLOCKS + 1).next_power_of_two().ilog2(),
        }
    }

    /// Tells a stack: the blocks of its nodes that were not told before.
    fn tell(&mut self, stack: u64, vcpu: u32, table: &Table<'_>, output: &mut Output<'_>) {
        let mut id = u32::try_from(stack).unwrap_or(0);
        while id != 0 {
            if self.is_new(id) {
                let first = ((id - 1) >> self.shift << self.shift) + 1;
                let last = first.saturating_add((1 << self.shift) - 1);
                tell_nodes(vcpu, first, last, table, output);
            }
            // A parent's id is smaller than its child's: this ends.
            id = table.parent(id).filter(|parent| *parent < id).unwrap_or(0);
        }
    }

    /// Whether a node's block was not told; from here on it is.
    fn is_new(&mut self, id: u32) -> bool {
        let block = (id - 1) >> self.shift;
        let Some(bits) = self.bits.get_mut(block as usize / 64) else {
            return false;
        };
        let bit = 1 << (block % 64);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }
}

#[inline(never)]
fn tell_nodes(vcpu: u32, first: u32, last: u32, table: &Table<'_>, output: &mut Output<'_>) {
    let mut payload = [0; PART_BYTES];
    let mut first = first;
    while first <= last {
        let (count, length) = table.encode(None, first, last, &mut payload);
        if count == 0 {
            return;
        }
        output.put(&Nodes {
            epoch: 0,
            vcpu,
            first,
            count,
            payload: payload.get(..length).unwrap_or_default(),
        });
        first = first.saturating_add(count);
    }
}
