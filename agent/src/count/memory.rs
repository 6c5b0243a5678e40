//! Divides the memory block, which the guest gives once at the start, into slots. It never grows.
//!
//! Why: docs/design/decisions.md#slots-are-referred-to-not-calculated.

use core::mem::MaybeUninit;

use crate::count::recording::RecordingCells;
use crate::count::slot::{Slot, SlotCells};
use crate::count::table::{Counts, MAX_NODES, MIN_SEGMENT, Node, SEGMENTS, Table};
use crate::ground::block::{take, take_with};
use crate::ground::sync::AtomicU32;

/// The least number of bytes that holds `vcpus` slots with a few stacks each, for up to
/// `recordings` recordings at a time, at any alignment of the block.
pub const fn minimum_bytes(vcpus: usize, recordings: usize) -> usize {
    let per_vcpu = slot_bytes(recordings) + SEGMENTS * MIN_SEGMENT * node_bytes(recordings);
    vcpus.saturating_mul(per_vcpu).saturating_add(PADDING)
}

/// Room to align six slices.
const PADDING: usize = 6 * align_of::<Node>();

/// The bytes of a slot, its cells and those of its recordings.
const fn slot_bytes(recordings: usize) -> usize {
    size_of::<Slot<'_>>() + size_of::<SlotCells>() + recordings * size_of::<RecordingCells>()
}

/// The bytes of a node, its counts and its share of the index.
const fn node_bytes(recordings: usize) -> usize {
    size_of::<Node>()
        + Table::index_length(2) * size_of::<AtomicU32>() / 2
        + recordings.saturating_sub(1) * size_of::<Counts>()
}

/// Divides `block` evenly between `vcpus`, in their order; `None` if it is too small.
pub(crate) fn divide(
    block: &mut [MaybeUninit<u8>],
    vcpus: usize,
    recordings: usize,
) -> Option<&[Slot<'_>]> {
    if block.len() < minimum_bytes(vcpus, recordings) {
        return None;
    }
    let for_nodes = block.len() - vcpus * slot_bytes(recordings) - PADDING;
    let nodes = (for_nodes / node_bytes(recordings) / vcpus.max(1)).min(MAX_NODES);
    let nodes = nodes / SEGMENTS * SEGMENTS;
    let mut rest = block;
    let cells: &[SlotCells] = take(&mut rest, vcpus)?;
    let all_recordings = take(&mut rest, vcpus * recordings)?;
    let all_nodes = take(&mut rest, vcpus * nodes)?;
    let index = take(&mut rest, vcpus * Table::index_length(nodes))?;
    let more_counts = take(&mut rest, vcpus * nodes * recordings.saturating_sub(1))?;
    take_with(&mut rest, vcpus, |vcpu| {
        let cells = cells.get(vcpu)?;
        let nodes = part(all_nodes, vcpu, vcpus)?;
        let index = part(index, vcpu, vcpus)?;
        let more_counts = part(more_counts, vcpu, vcpus)?;
        Some(Slot {
            cells,
            recordings: part(all_recordings, vcpu, vcpus)?,
            table: Table::new(nodes, index, more_counts, cells.table()),
        })
    })
}

/// One vCPU's part of `all`, which is divided evenly.
fn part<T>(all: &[T], vcpu: usize, vcpus: usize) -> Option<&[T]> {
    let each = all.len().checked_div(vcpus)?;
    all.get(vcpu * each..)?.get(..each)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn block(bytes: usize) -> Vec<MaybeUninit<u8>> {
        std::vec![MaybeUninit::new(0xff); bytes]
    }

    #[test]
    fn any_alignment_will_do_and_everything_is_zero() {
        for offset in 0..65 {
            let mut block = block(minimum_bytes(2, 3) + 65);
            let slots = divide(&mut block[offset..minimum_bytes(2, 3) + offset], 2, 3).unwrap();
            assert_eq!(slots.len(), 2);
            for slot in slots {
                assert_eq!(slot.recordings.len(), 3);
                assert!(slot.table.segment_nodes() >= MIN_SEGMENT as u32);
                assert_eq!(slot.table.used(), 0);
            }
        }
    }

    #[test]
    fn a_block_too_small_is_refused() {
        assert!(divide(&mut block(minimum_bytes(1, 1) - 1), 1, 1).is_none());
        assert!(divide(&mut [], 1, 1).is_none());
        assert!(divide(&mut block(1 << 16), usize::MAX, 4).is_none());
    }

    #[test]
    fn a_mebibyte_holds_over_fourteen_thousand_nodes() {
        for (recordings, least) in [(1, 14_000), (2, 11_500), (4, 8_500)] {
            let mut block = block(1 << 20);
            let slots = divide(&mut block, 1, recordings).unwrap();
            let nodes = SEGMENTS as u32 * slots[0].table.segment_nodes();
            assert!(nodes > least, "{nodes} nodes, {recordings} recordings");
        }
    }
}
