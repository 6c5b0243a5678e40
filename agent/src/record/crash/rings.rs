//! A vCPU's ring in a crash dump: the newest records first, and before each part of them the stacks
//! that they refer to. If the end of the dump is lost, the rest shows the last moments with their
//! stacks.

use unikprof_proto::message::{Nodes, RingEnd, RingHead, RingRun, StacksEnd};
use unikprof_proto::ring::{decode, kind};

use super::{FRAME, Output};
use crate::agent::AnyAgent;
use crate::count::table::{SEGMENTS, Table};
use crate::record::ring_answer::OVERHEAD;
use crate::ring::{Reader, Ring, Rings, Run};

/// The number of records in the first part; each following part may have twice as many, up to
/// [`PART`]. So the first records come after few stacks. A part is short, because a lost line of
/// the dump costs all of it, and because a crash may happen on a small stack.
const FIRST_PART: u64 = 2;
const PART: u64 = 16;
const PART_BYTES: usize = 480;

const _: () = assert!(PART_BYTES + OVERHEAD <= FRAME, "a part fits a frame");

/// The minimum number of nodes that are sent at once, as a power of two: about one frame.
const BLOCK_SHIFT: u32 = 4;
/// The maximum number of blocks that a table is divided into.
const BLOCKS: u32 = 4096;

/// The part of a ring that is written.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    /// Its newest parts: at least up to this many bytes, then up to one with a stack or twice as
    /// many bytes.
    Newest(usize),
    All,
}

/// The stacks that were sent, by blocks of a table's nodes.
struct Sent {
    bits: [u64; BLOCKS as usize / 64],
    /// The number of nodes in a block, all of one segment, as a power of two.
    shift: u32,
    /// The number of blocks in a segment.
    segment_blocks: usize,
}

impl AnyAgent<'_, '_> {
    /// Writes of a vCPU's ring at most the `newest` records with their stacks; returns whether older
    /// ones than these were omitted.
    pub(super) fn write_ring(
        &self,
        rings: &Rings<'_>,
        vcpu: u32,
        newest: u64,
        extent: Extent,
        output: &mut Output<'_>,
    ) -> bool {
        let (Some(ring), Some(slot)) = (rings.ring(vcpu), self.slot(vcpu)) else {
            return false;
        };
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
        });
        let mut sent = Sent::none(&slot.table);
        let mut whole_since_ns = None;
        let mut payload = [0; PART_BYTES];
        let (mut end, mut most) = (next, FIRST_PART);
        let (begin, mut has_stack) = (output.length, false);
        let is_enough = |has_stack, length: usize| match extent {
            Extent::All => false,
            Extent::Newest(bytes) => {
                length.saturating_sub(begin) >= if has_stack { bytes } else { 2 * bytes }
            }
        };
        while end > oldest && !is_enough(has_stack, output.length) {
            let least = end.saturating_sub(most).max(oldest);
            let (start, part) = part(&ring, &slot.table, least, end, &mut payload);
            most = PART.min(most * 2);
            end = start;
            let Some((run, since_ns)) = part else {
                continue;
            };
            let payload = payload.get(..run.bytes).unwrap_or_default();
            let decoded = decode(run.base_ns, run.count, payload, |record| {
                if matches!(record.kind, kind::SAMPLE | kind::WAIT) {
                    has_stack |= record.first != 0;
                    sent.send(record.first, vcpu, &slot.table, output);
                }
            });
            if decoded.is_err() {
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
        output.put(&StacksEnd { vcpu, oldest: slot.table.oldest(), known: slot.table.newest() });
        oldest > held
    }
}

/// Returns the records from `start` to `end`, or the last of them that fit; also the position of
/// the first, and the time from which none is missing. Returns none if the record before `end`
/// cannot be read.
fn part(
    ring: &Ring<'_>,
    table: &Table<'_>,
    mut start: u64,
    end: u64,
    payload: &mut [u8],
) -> (u64, Option<(Run, Option<u64>)>) {
    while start < end {
        let mut reader = Reader::new(ring, start, 0).no_wait().up_to(end);
        match reader.run(ring, |at, place| table.number_at(place, at), payload) {
            Some(run) if run.first.saturating_add(u64::from(run.count)) == end => {
                return (run.first, Some((run, reader.whole_since_ns())));
            }
            // There are too many, or one of them cannot be read: try the later half.
            Some(_) => start = start.saturating_add((end - start).div_ceil(2)),
            None => break,
        }
    }
    (end.saturating_sub(1), None)
}

impl Sent {
    fn none(table: &Table<'_>) -> Self {
        const SEGMENT_BLOCKS: u32 = BLOCKS / SEGMENTS as u32;
        let blocks = table.segment_nodes() >> BLOCK_SHIFT;
        Self {
            bits: [0; BLOCKS as usize / 64],
            shift: BLOCK_SHIFT + (blocks / SEGMENT_BLOCKS + 1).next_power_of_two().ilog2(),
            segment_blocks: SEGMENT_BLOCKS as usize,
        }
    }

    /// Sends a stack: the blocks of its nodes that were not sent before.
    fn send(&mut self, stack: u64, vcpu: u32, table: &Table<'_>, output: &mut Output<'_>) {
        let mut place = table.place(stack).unwrap_or(0);
        while place != 0 {
            let number = table.number(place);
            let segment_nodes = u64::from(table.segment_nodes());
            let index = number.checked_rem(segment_nodes).unwrap_or(0);
            if number != 0 && self.is_new(table.segment_of(place), index) {
                let first = number - (index & ((1 << self.shift) - 1));
                let segment_end = number - index + segment_nodes;
                let end = (first + (1 << self.shift)).min(segment_end);
                send_nodes(vcpu, first - 1, end - 1, table, output);
            }
            // A parent comes before its child, so this loop ends.
            place = table.parent(place).filter(|parent| *parent < place).unwrap_or(0);
        }
    }

    /// Whether the block of a node was not sent yet; marks it as sent.
    fn is_new(&mut self, segment: u32, index: u64) -> bool {
        let block = segment as usize * self.segment_blocks + (index >> self.shift) as usize;
        let Some(bits) = self.bits.get_mut(block / 64) else {
            return false;
        };
        let bit = 1 << (block % 64);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }
}

/// Sends the nodes of one segment with numbers above `after` and up to `last`.
#[inline(never)]
fn send_nodes(vcpu: u32, mut after: u64, last: u64, table: &Table<'_>, output: &mut Output<'_>) {
    let mut payload = [0; PART_BYTES];
    while after < last
        && let Some(run) = table.encode(after, last, &mut payload)
    {
        output.put(&Nodes {
            vcpu,
            first: run.first,
            count: run.count,
            payload: payload.get(..run.bytes).unwrap_or_default(),
        });
        after = run.first + u64::from(run.count) - 1;
    }
}
