//! The memory block: given once at the start, divided once, never grown.

use core::mem::MaybeUninit;

use crate::count::recording::RecordingCells;
use crate::count::slot::SlotCells;
use crate::count::table::{Counts, MIN_SEGMENT, Node, SEGMENTS, Table};
use crate::ground::block::take;
use crate::ground::sync::AtomicU32;

/// The block's parts, for all vCPUs in their order.
#[derive(Debug)]
pub(crate) struct Parts<'m> {
    pub(crate) slots: &'m [SlotCells],
    pub(crate) recordings: &'m [RecordingCells],
    pub(crate) nodes: &'m [Node],
    pub(crate) index: &'m [AtomicU32],
    pub(crate) more_counts: &'m [Counts],
    /// How many of the nodes each vCPU has: a multiple of [`SEGMENTS`].
    pub(crate) nodes_per_vcpu: usize,
}

/// The least block that holds `vcpus` slots with a few stacks each, for so many `recordings` at a time, at any
/// alignment.
pub const fn minimum_bytes(vcpus: usize, recordings: usize) -> usize {
    let per_vcpu = slot_bytes(recordings) + SEGMENTS * MIN_SEGMENT * node_bytes(recordings);
    vcpus.saturating_mul(per_vcpu).saturating_add(PADDING)
}

/// Room to align five slices.
const PADDING: usize = 5 * align_of::<Node>();

/// A slot and its recordings' cells.
const fn slot_bytes(recordings: usize) -> usize {
    size_of::<SlotCells>() + recordings * size_of::<RecordingCells>()
}

/// A node, its counts and its share of the index.
const fn node_bytes(recordings: usize) -> usize {
    size_of::<Node>()
        + Table::index_length(2) * size_of::<AtomicU32>() / 2
        + recordings.saturating_sub(1) * size_of::<Counts>()
}

/// Divides `block` evenly between `vcpus`; `None` where it is too small.
pub(crate) fn divide(
    block: &mut [MaybeUninit<u8>],
    vcpus: usize,
    recordings: usize,
) -> Option<Parts<'_>> {
    if block.len() < minimum_bytes(vcpus, recordings) {
        return None;
    }
    let for_nodes = block.len() - vcpus * slot_bytes(recordings) - PADDING;
    // A place and its tag share 32 bits; the tag should keep seven of them.
    let nodes = (for_nodes / node_bytes(recordings) / vcpus.max(1)).min(1 << 24);
    let nodes = nodes / SEGMENTS * SEGMENTS;
    let mut rest = block;
    Some(Parts {
        slots: take(&mut rest, vcpus)?,
        recordings: take(&mut rest, vcpus * recordings)?,
        nodes: take(&mut rest, vcpus * nodes)?,
        index: take(&mut rest, vcpus * Table::index_length(nodes))?,
        more_counts: take(&mut rest, vcpus * nodes * recordings.saturating_sub(1))?,
        nodes_per_vcpu: nodes,
    })
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
            let parts = divide(&mut block[offset..minimum_bytes(2, 3) + offset], 2, 3).unwrap();
            assert_eq!((parts.slots.len(), parts.recordings.len()), (2, 6));
            assert_eq!(parts.more_counts.len(), parts.nodes.len() * 2);
            assert!(parts.nodes.len() >= 2 * SEGMENTS * MIN_SEGMENT);
            assert_eq!(parts.index.len(), parts.nodes.len() / 2 * 3);
            let mut zero = parts
                .index
                .iter()
                .map(|cell| cell.load(crate::ground::sync::Ordering::Relaxed));
            assert!(zero.all(|entry| entry == 0));
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
        assert!(divide(&mut block(1 << 20), 1, 2).unwrap().nodes.len() > 11_500);
        assert!(divide(&mut block(1 << 20), 1, 4).unwrap().nodes.len() > 8_500);
        assert!(divide(&mut block(1 << 20), 1, 1).unwrap().nodes.len() > 14_000);
    }
}
