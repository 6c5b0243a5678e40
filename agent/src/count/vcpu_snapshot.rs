//! The snapshot of one vCPU: its registers and its stack at one moment, for a client that asks for
//! them.
//!
//! One bit of the slot's `live` word, which every tick reads anyway, decides who uses the cells.
//! The service sets it to [request](crate::count::slot::SlotCells::request_snapshot) a snapshot.
//! While it is set, only the vCPU itself uses the cells, as the slot's owner; it clears the bit
//! when the snapshot is complete. Otherwise only the service reads.
//!
//! Why: docs/design/decisions.md#a-snapshot-is-requested-by-a-bit-that-ticks-read-anyway.

use crate::ground::platform::Registers;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::stack::path::{MAX_CODES, Path};

/// The values before the stack: two times and four registers.
const HEAD: usize = 6;

/// The greatest length of an [encoded](VcpuSnapshotCells::encode) snapshot in bytes.
pub(crate) const MOST_BYTES: usize = size_of::<u64>() * (HEAD + MAX_CODES);

/// The cells of a vCPU's snapshot.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct VcpuSnapshotCells {
    /// When it was taken, when the vCPU blocked (0 = it was running), `pc`, `sp`, `fp`, `lr`, and
    /// the stack, leaf first.
    values: [AtomicU64; HEAD + MAX_CODES],
    /// The number of values; 0 = no snapshot was taken.
    length: AtomicU32,
}

impl Default for VcpuSnapshotCells {
    fn default() -> Self {
        Self { values: core::array::from_fn(|_| AtomicU64::new(0)), length: AtomicU32::new(0) }
    }
}

impl VcpuSnapshotCells {
    /// Stores a snapshot. `blocked_since_ns` is 0 if the vCPU is running.
    pub(crate) fn store(
        &self,
        at_ns: u64,
        blocked_since_ns: u64,
        registers: &Registers,
        path: &Path<'_>,
    ) {
        let Registers { pc, sp, fp, lr } = *registers;
        let head = [at_ns, blocked_since_ns, pc, sp, fp, lr];
        let (heads, codes) = self.values.split_at(HEAD);
        for (cell, value) in heads.iter().zip(head) {
            cell.store(value, Ordering::Relaxed);
        }
        for (cell, code) in codes.iter().zip(path.codes()) {
            cell.store(code.into(), Ordering::Relaxed);
        }
        let length = HEAD + path.len();
        self.length.store(length as u32, Ordering::Relaxed);
    }

    /// When the snapshot was taken; 0 if there is none.
    pub(crate) fn at_ns(&self) -> u64 {
        self.values[0].load(Ordering::Relaxed)
    }

    /// Encodes the snapshot; returns its length in bytes, 0 if there is none.
    pub(crate) fn encode(&self, buffer: &mut [u8; MOST_BYTES]) -> usize {
        let (places, _) = buffer.as_chunks_mut();
        for (place, cell) in places.iter_mut().zip(&self.values) {
            *place = cell.load(Ordering::Relaxed).to_le_bytes();
        }
        size_of::<u64>() * self.length.load(Ordering::Relaxed) as usize
    }
}
