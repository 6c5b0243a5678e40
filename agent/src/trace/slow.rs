//! Slow traces: the calls inside a root call wait in a buffer until it is known whether the root
//! call was slow.

use core::mem::MaybeUninit;

use super::stacks::DEPTH;
use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of root calls that can be open on different stacks at a time with the calls inside
/// them.
const BUFFERS: usize = 8;

/// The records of a buffer.
const RECORDS: usize = 512;

/// A buffer's memory, except its records.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct BufferCells {
    is_taken: AtomicU32,
    used: AtomicU32,
    /// Calls whose entries are in the buffer and whose ends are not. There is room for these.
    open: AtomicU32,
    /// Open calls whose entries did not fit.
    left_out: AtomicU32,
    /// Whether any call did not fit.
    is_truncated: AtomicU32,
    _padding: AtomicU32,
}

/// A waiting record's memory.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct WaitingCells {
    /// The time times two, plus one for the end of a call.
    when: AtomicU64,
    number: AtomicU64,
}

/// A record that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) at_ns: u64,
    pub(super) is_end: bool,
    pub(super) number: u64,
}

/// All buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers<'m> {
    cells: &'m [BufferCells],
    records: &'m [WaitingCells],
}

/// The bytes of memory for the buffers.
pub(super) const MEMORY: usize =
    BUFFERS * (size_of::<BufferCells>() + RECORDS * size_of::<WaitingCells>());

impl<'m> Buffers<'m> {
    pub(super) fn in_block(block: &mut &'m mut [MaybeUninit<u8>]) -> Option<Self> {
        Some(Self { cells: take(block, BUFFERS)?, records: take(block, BUFFERS * RECORDS)? })
    }

    /// Releases all buffers. No handler may run.
    pub(super) fn clear(&self) {
        for cells in self.cells {
            cells.is_taken.store(0, Ordering::Relaxed);
        }
    }

    /// Takes a free buffer; returns its number, counted from 1, or 0 if there is none.
    pub(super) fn claim(&self) -> u32 {
        for (number, cells) in (1..).zip(self.cells) {
            if cells.is_taken.swap(1, Ordering::Acquire) == 0 {
                for word in [&cells.used, &cells.open, &cells.left_out, &cells.is_truncated] {
                    word.store(0, Ordering::Relaxed);
                }
                return number;
            }
        }
        0
    }

    fn buffer(&self, number: u32) -> Option<(&'m BufferCells, &'m [WaitingCells])> {
        let index = (number as usize).checked_sub(1)?;
        let records = self.records.get(index * RECORDS..)?.get(..RECORDS)?;
        Some((self.cells.get(index)?, records))
    }

    /// Adds a record to a buffer. A call that does not fit is left out, with its end.
    pub(super) fn push(&self, number: u32, waiting: Waiting) {
        let Some((cells, records)) = self.buffer(number) else {
            return;
        };
        let used = cells.used.load(Ordering::Relaxed);
        let open = cells.open.load(Ordering::Relaxed);
        let left_out = cells.left_out.load(Ordering::Relaxed);
        let has_room = used as usize + open as usize + 2 <= RECORDS;
        let open = match (waiting.is_end, left_out) {
            (true, 0) => open.saturating_sub(1),
            (true, _) => {
                cells.left_out.store(left_out - 1, Ordering::Relaxed);
                return;
            }
            (false, 0) if has_room => open + 1,
            (false, _) => {
                cells.left_out.store(left_out + 1, Ordering::Relaxed);
                cells.is_truncated.store(1, Ordering::Relaxed);
                return;
            }
        };
        if let Some(record) = records.get(used as usize) {
            let when = waiting.at_ns << 1 | u64::from(waiting.is_end);
            record.when.store(when, Ordering::Relaxed);
            record.number.store(waiting.number, Ordering::Relaxed);
            cells.used.store(used + 1, Ordering::Relaxed);
            cells.open.store(open, Ordering::Relaxed);
        }
    }

    /// Passes the records of a buffer to `visit`; returns whether all calls are among them.
    pub(super) fn each(&self, number: u32, mut visit: impl FnMut(Waiting)) -> bool {
        let Some((cells, records)) = self.buffer(number) else {
            return false;
        };
        let used = cells.used.load(Ordering::Relaxed) as usize;
        for record in records.iter().take(used) {
            let when = record.when.load(Ordering::Relaxed);
            visit(Waiting {
                at_ns: when >> 1,
                is_end: when & 1 == 1,
                number: record.number.load(Ordering::Relaxed),
            });
        }
        cells.is_truncated.load(Ordering::Relaxed) == 0
    }

    /// Gives a buffer back.
    pub(super) fn release(&self, number: u32) {
        if let Some((cells, _)) = self.buffer(number) {
            cells.is_taken.store(0, Ordering::Release);
        }
    }
}

const _: () = assert!(RECORDS > 2 * DEPTH, "the ends of all open calls fit");
