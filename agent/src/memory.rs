//! The memory block: given once at the start, divided once, never grown.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use unikprof_proto::ring::MAX_EVENT_NAMES;

use crate::caller_table::{
    CallerTable, ENTRY_AND_ROWS, ROWS_PER_ENTRY, SPARE_ENTRIES, caller_table_bytes,
};
use crate::lane::LaneCells;
use crate::ring::{NameCells, RecordCells, RingCells, Rings, SharedCells, records_per_vcpu};
use crate::slot::SlotCells;
use crate::sync::{AtomicU32, AtomicU64};
use crate::table::{Counts, Node, Table};

/// The block's parts, for all vCPUs in their order.
#[derive(Debug)]
pub(crate) struct Parts<'m> {
    pub(crate) slots: &'m [SlotCells],
    pub(crate) lanes: &'m [LaneCells],
    pub(crate) nodes: &'m [Node],
    pub(crate) index: &'m [AtomicU32],
    pub(crate) more_counts: &'m [Counts],
    /// How many of the nodes each vCPU has.
    pub(crate) nodes_per_vcpu: usize,
}

/// Types for which zeroed memory is a value. All of them are made of atomics alone.
///
/// # Safety
/// Every bit pattern of zeros is a value, and the value has no destructor to run.
unsafe trait Zeroed {}

// SAFETY: structures and arrays of atomic integers only.
unsafe impl Zeroed for SlotCells {}
// SAFETY: as above.
unsafe impl Zeroed for LaneCells {}
// SAFETY: as above.
unsafe impl Zeroed for Node {}
// SAFETY: as above.
unsafe impl Zeroed for Counts {}
// SAFETY: as above.
unsafe impl Zeroed for SharedCells {}
// SAFETY: as above.
unsafe impl Zeroed for NameCells {}
// SAFETY: as above.
unsafe impl Zeroed for RingCells {}
// SAFETY: as above.
unsafe impl Zeroed for RecordCells {}
// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU64 {}

/// The least block that holds `vcpus` slots with a few stacks each, for so many `recordings` at a time,
/// wherever it is aligned.
pub const fn minimum_bytes(vcpus: usize, recordings: usize) -> usize {
    let per_vcpu = slot_bytes(recordings) + 64 * node_bytes(recordings);
    vcpus.saturating_mul(per_vcpu).saturating_add(PADDING)
}

/// Room to align five slices.
const PADDING: usize = 5 * align_of::<Node>();

/// A slot and its lanes.
const fn slot_bytes(recordings: usize) -> usize {
    size_of::<SlotCells>() + recordings * size_of::<LaneCells>()
}

/// A node, its counts and its share of the index.
const fn node_bytes(recordings: usize) -> usize {
    size_of::<Node>()
        + Table::index_length(1) * size_of::<AtomicU32>()
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
    // An id and its tag share 32 bits; the tag should keep eight of them.
    let nodes = (for_nodes / node_bytes(recordings) / vcpus.max(1)).min((1 << 24) - 1);
    let mut rest = block;
    Some(Parts {
        slots: take(&mut rest, vcpus)?,
        lanes: take(&mut rest, vcpus * recordings)?,
        nodes: take(&mut rest, vcpus * nodes)?,
        index: take(&mut rest, vcpus * Table::index_length(nodes))?,
        more_counts: take(&mut rest, vcpus * nodes * recordings.saturating_sub(1))?,
        nodes_per_vcpu: nodes,
    })
}

/// A caller table over all of `block`, for codes below `end`; `None` where it holds no row.
pub(crate) fn caller_table(block: &mut [MaybeUninit<u8>], end: u32) -> Option<CallerTable<'_>> {
    let spare = caller_table_bytes(0);
    let for_rows = block.len().checked_sub(spare)?;
    let rows = for_rows / ENTRY_AND_ROWS * ROWS_PER_ENTRY;
    let mut rest = block;
    let rows = take(&mut rest, rows)?;
    let index = take(&mut rest, rows.len() / ROWS_PER_ENTRY + SPARE_ENTRIES)?;
    (!rows.is_empty()).then(|| CallerTable::new(rows, index, end))
}

/// Rings over all of `block`, the same for each of `vcpus`; `None` where it is too small.
pub(crate) fn rings(block: &mut [MaybeUninit<u8>], vcpus: usize) -> Option<Rings<'_>> {
    let records = records_per_vcpu(block.len(), vcpus)?;
    let mut rest = block;
    let shared: &[SharedCells] = take(&mut rest, 1)?;
    let names = take(&mut rest, MAX_EVENT_NAMES)?;
    let cells = take(&mut rest, vcpus)?;
    let records = take(&mut rest, vcpus.checked_mul(records)?)?;
    Rings::new(shared.first()?, names, cells, records)
}

/// Takes `count` zeroed values from the front of `block`.
fn take<'m, T: Zeroed>(block: &mut &'m mut [MaybeUninit<u8>], count: usize) -> Option<&'m [T]> {
    let padding = block.as_ptr().align_offset(align_of::<T>());
    let bytes = count.checked_mul(size_of::<T>())?;
    let whole = core::mem::take(block);
    let (_, aligned) = whole.split_at_mut_checked(padding)?;
    let (values, rest) = aligned.split_at_mut_checked(bytes)?;
    *block = rest;
    values.fill(MaybeUninit::new(0));
    // SAFETY: the bytes are aligned for T, as many as `count` values take, all zero, which T says
    // is a value, and borrowed exclusively for 'm.
    Some(unsafe { core::slice::from_raw_parts(values.as_ptr().cast::<T>(), count) })
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::ring::ring_bytes;

    fn block(bytes: usize) -> Vec<MaybeUninit<u8>> {
        std::vec![MaybeUninit::new(0xff); bytes]
    }

    #[test]
    fn any_alignment_will_do_and_everything_is_zero() {
        for offset in 0..65 {
            let mut block = block(minimum_bytes(2, 3) + 65);
            let parts = divide(&mut block[offset..minimum_bytes(2, 3) + offset], 2, 3).unwrap();
            assert_eq!((parts.slots.len(), parts.lanes.len()), (2, 6));
            assert_eq!(parts.more_counts.len(), parts.nodes.len() * 2);
            assert!(parts.nodes.len() >= 2 * 60);
            assert_eq!(parts.index.len(), parts.nodes.len() * 2);
            let mut zero = parts
                .index
                .iter()
                .map(|cell| cell.load(crate::sync::Ordering::Relaxed));
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

    #[test]
    fn rings_take_all_of_their_block_wherever_it_lies() {
        let bytes = ring_bytes(3, 1000);
        for offset in 0..65 {
            let mut block = block(bytes + 65);
            let rings = rings(&mut block[offset..bytes + offset], 3).unwrap();
            for vcpu in 0..3 {
                let ring = rings.ring(vcpu).unwrap();
                assert!((1000..1020).contains(&ring.capacity()));
                assert_eq!(ring.next(), 0);
            }
            assert!(rings.ring(3).is_none());
        }
        assert!(rings(&mut block(ring_bytes(3, 0)), 3).is_some());
        assert!(rings(&mut block(ring_bytes(3, 0) / 2), 3).is_none());
        assert!(rings(&mut block(1 << 16), 0).is_none());
        assert!(rings(&mut block(1 << 16), usize::MAX).is_none());
        let mut mebibyte = block(1 << 20);
        let ring = rings(&mut mebibyte, 1).unwrap().ring(0).unwrap();
        assert!(ring.capacity() > 64_000);
    }
}
