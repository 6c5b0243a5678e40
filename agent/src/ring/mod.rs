//! The ring: what happened when, on each vCPU, the oldest dropped first; in a block of memory of its own.
//!
//! Any context of a vCPU writes into its ring, also an upcall that interrupts a writer. A writer
//! reserves a position, claims the record's place, and publishes what it wrote there with the lap that it
//! belongs to; it gives up where the place is somebody else's, which takes an interruption in which the
//! whole ring was filled. A reader runs beside and takes only what carries the lap it expects. Nobody
//! locks or waits.

mod laps;
#[cfg(all(test, loom))]
mod model;
mod names;
mod reader;
mod record;
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests;

use core::mem::MaybeUninit;

use unikprof_proto::ring::MAX_EVENT_NAMES;

use crate::ground::block::take;

pub(crate) use self::laps::Laps;
pub use self::names::EventNameError;
pub(crate) use self::names::{NameCells, Names};
pub(crate) use self::reader::{Reader, Run};
use self::record::HALF_BITS;
pub(crate) use self::record::{Entry, RecordCells, Step};
use crate::ground::sync::{AtomicU64, Ordering};

/// A position at a multiple of this keeps the whole time, so that a reader finds one soon.
const ANCHOR_EVERY: u64 = 256;

/// The fewest records a vCPU's ring has.
pub(crate) const MIN_RECORDS: usize = 64;

/// What all vCPUs share.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SharedCells {
    names_refused: AtomicU64,
    /// Records of contexts whose vCPU is not known.
    unplaced: AtomicU64,
    /// When the time of day was written last.
    clock_ns: AtomicU64,
}

/// What one vCPU's ring needs beside its records.
#[repr(C, align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct RingCells {
    /// The next position.
    next: AtomicU64,
    /// The half in which the last record's time lies: its bits from [`HALF_BITS`] on.
    half: AtomicU64,
    /// Records that were given up.
    lost: AtomicU64,
    /// Records before this position were forgotten: they name stacks that are gone.
    floor: AtomicU64,
    /// When the vCPU's times were written last, and one more than what was stolen by then; 0 = never.
    times_ns: AtomicU64,
    stolen: AtomicU64,
}

/// Whether `every_ns` have passed since it was so last; then it counts from `now_ns` on.
fn is_due(last_ns: &AtomicU64, now_ns: u64, every_ns: u64) -> bool {
    let last = last_ns.load(Ordering::Relaxed);
    let is_due = last == 0 || now_ns.saturating_sub(last) >= every_ns;
    if is_due {
        last_ns.store(now_ns.max(1), Ordering::Relaxed);
    }
    is_due
}

/// All rings and the names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings<'m> {
    shared: &'m SharedCells,
    names: &'m [NameCells],
    cells: &'m [RingCells],
    records: &'m [RecordCells],
    laps: Laps,
}

/// One vCPU's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring<'m> {
    cells: &'m RingCells,
    records: &'m [RecordCells],
    laps: Laps,
}

/// How large the block for the rings should be, in bytes: for so many vCPUs, each with room for `records`
/// records, wherever it is aligned. See [`Agent::with_ring`](crate::Agent::with_ring).
pub const fn ring_bytes(vcpus: usize, records: usize) -> usize {
    let records = if records < MIN_RECORDS {
        MIN_RECORDS
    } else {
        records
    };
    // A ring's length is rounded down by less than one part in 128.
    let records = records.saturating_add(records / 64 + 1);
    let per_vcpu = size_of::<RingCells>().saturating_add(records.saturating_mul(RECORD));
    fixed_bytes().saturating_add(vcpus.saturating_mul(per_vcpu))
}

/// Why there are no rings.
pub(crate) const NO_RINGS: &str = if cfg!(feature = "ring") {
    "the agent was given no memory for a ring at its guest's start"
} else {
    "the agent was built without its flight recorder, the feature `ring`"
};

const RECORD: usize = size_of::<RecordCells>();

/// What the rings of any number of vCPUs need, and room to align four slices.
const fn fixed_bytes() -> usize {
    size_of::<SharedCells>()
        + MAX_EVENT_NAMES * size_of::<NameCells>()
        + 4 * align_of::<RingCells>()
}

/// How many records each of `vcpus` rings has room for in a block of so many bytes.
fn records_per_vcpu(bytes: usize, vcpus: usize) -> Option<usize> {
    let rings = vcpus.checked_mul(size_of::<RingCells>())?;
    let for_records = bytes.checked_sub(fixed_bytes().checked_add(rings)?)?;
    let records = (for_records / RECORD).checked_div(vcpus)?;
    (records >= MIN_RECORDS).then_some(records)
}

impl<'m> Rings<'m> {
    /// Rings over all of `block`, the same for each of `vcpus`; `None` if it is too small.
    pub(crate) fn in_block(block: &'m mut [MaybeUninit<u8>], vcpus: usize) -> Option<Self> {
        let records = records_per_vcpu(block.len(), vcpus)?;
        let mut rest = block;
        let shared: &[SharedCells] = take(&mut rest, 1)?;
        let names = take(&mut rest, MAX_EVENT_NAMES)?;
        let cells = take(&mut rest, vcpus)?;
        let records = take(&mut rest, vcpus.checked_mul(records)?)?;
        Self::new(shared.first()?, names, cells, records)
    }

    /// Rings over these parts, one for each of `cells`, with the records divided evenly.
    pub(crate) fn new(
        shared: &'m SharedCells,
        names: &'m [NameCells],
        cells: &'m [RingCells],
        records: &'m [RecordCells],
    ) -> Option<Self> {
        let laps = Laps::new(records.len().checked_div(cells.len())?)?;
        Some(Self {
            shared,
            names,
            cells,
            records,
            laps,
        })
    }

    /// A vCPU's ring.
    #[inline]
    pub(crate) fn ring(&self, vcpu: u32) -> Option<Ring<'m>> {
        let vcpu = vcpu as usize;
        let capacity = self.laps.capacity() as usize;
        let first = vcpu.checked_mul(capacity)?;
        Some(Ring {
            cells: self.cells.get(vcpu)?,
            records: self.records.get(first..first.checked_add(capacity)?)?,
            laps: self.laps,
        })
    }

    /// How many records each ring has room for.
    pub(crate) fn capacity(&self) -> u64 {
        self.laps.capacity()
    }

    /// A number that no other position of any vCPU makes, never 0.
    #[inline]
    pub(crate) fn number(&self, vcpu: u32, position: u64) -> u64 {
        let vcpus = self.cells.len() as u64;
        position
            .wrapping_mul(vcpus)
            .wrapping_add(u64::from(vcpu) + 1)
    }

    /// Whether the time of day was not written for so long.
    pub(crate) fn is_clock_due(&self, now_ns: u64, every_ns: u64) -> bool {
        is_due(&self.shared.clock_ns, now_ns, every_ns)
    }

    /// The names of events.
    pub(crate) fn names(&self) -> Names<'m> {
        Names {
            cells: self.names,
            refused: &self.shared.names_refused,
        }
    }

    /// Counts a record that has no place.
    #[cold]
    pub(crate) fn count_unplaced(&self) {
        self.shared.unplaced.fetch_add(1, Ordering::Relaxed);
    }

    /// How many records were given up: of a vCPU's ring, and with the first those that had no place.
    pub(crate) fn lost(&self, vcpu: u32) -> u64 {
        let unplaced = match vcpu {
            0 => self.shared.unplaced.load(Ordering::Relaxed),
            _ => 0,
        };
        self.ring(vcpu)
            .map_or(0, |ring| ring.lost())
            .saturating_add(unplaced)
    }
}

impl<'m> Ring<'m> {
    #[cfg(test)]
    pub(crate) fn new(cells: &'m RingCells, records: &'m [RecordCells]) -> Option<Self> {
        let laps = Laps::new(records.len())?;
        Some(Self {
            cells,
            records,
            laps,
        })
    }

    /// How many records there is room for.
    pub(crate) fn capacity(&self) -> u64 {
        self.laps.capacity()
    }

    /// The position after the newest record.
    pub(crate) fn next(&self) -> u64 {
        self.cells.next.load(Ordering::Acquire)
    }

    /// The position of the oldest record that is held.
    pub(crate) fn oldest(&self) -> u64 {
        let floor = self.cells.floor.load(Ordering::Relaxed);
        self.next().saturating_sub(self.capacity()).max(floor)
    }

    /// The half in which the last record's time lies.
    fn half(&self) -> u64 {
        self.cells.half.load(Ordering::Acquire)
    }

    /// Forgets all records.
    pub(crate) fn forget(&self) {
        self.cells.floor.store(self.next(), Ordering::Relaxed);
    }

    /// Whether the vCPU's times were not written for so long.
    pub(crate) fn is_time_due(&self, now_ns: u64, every_ns: u64) -> bool {
        is_due(&self.cells.times_ns, now_ns, every_ns)
    }

    /// What was stolen since this was asked last, of so much in all; 0 the first time.
    pub(crate) fn stolen_since(&self, stolen_ns: u64) -> u64 {
        let told = stolen_ns.saturating_add(1);
        match self.cells.stolen.swap(told, Ordering::Relaxed) {
            0 => 0,
            before => told.saturating_sub(before),
        }
    }

    /// How many records were given up.
    pub(crate) fn lost(&self) -> u64 {
        self.cells.lost.load(Ordering::Relaxed)
    }

    /// Writes a record; answers its position, or `None` where it was given up.
    #[inline]
    pub(crate) fn push(&self, now_ns: u64, entry: Entry) -> Option<u64> {
        let position = self.reserve(now_ns);
        self.write(position, now_ns, entry).then_some(position)
    }

    /// Writes a record whose number is made of its own position; answers that number.
    #[inline]
    pub(crate) fn push_numbered(
        &self,
        now_ns: u64,
        kind: u8,
        name: u8,
        number: impl FnOnce(u64) -> u64,
    ) -> Option<u64> {
        let position = self.reserve(now_ns);
        let number = number(position);
        self.write(position, now_ns, Entry::named(kind, name, number))
            .then_some(number)
    }

    /// Writes a record of two numbers that take 64 bits each, side by side.
    pub(crate) fn push_pair(&self, now_ns: u64, kind: u8, first: u64, second: u64) {
        const LAST: u64 = ANCHOR_EVERY - 1;
        let mut position = self.cells.next.fetch_add(2, Ordering::Relaxed);
        let is_anchor = position.is_multiple_of(ANCHOR_EVERY) || position % ANCHOR_EVERY == LAST;
        if is_anchor || self.is_other_half(now_ns) {
            self.write_time(position, now_ns);
            self.write_time(position.wrapping_add(1), now_ns);
            position = self.cells.next.fetch_add(2, Ordering::Relaxed);
        }
        self.write(position, now_ns, Entry::new(kind, first, 0));
        self.write(position.wrapping_add(1), now_ns, Entry::rest(second));
    }

    /// Writes a record as [`push`](Self::push) does, with `interrupt` called wherever an upcall could come.
    #[cfg(test)]
    pub(crate) fn push_interrupted(&self, now_ns: u64, entry: Entry, interrupt: impl Fn(Step)) {
        let position = self.reserve(now_ns);
        self.write_interrupted(position, now_ns, entry, interrupt);
    }

    /// A position for a record; first writes down the whole time, where that is called for.
    #[inline]
    fn reserve(&self, now_ns: u64) -> u64 {
        let position = self.cells.next.fetch_add(1, Ordering::Relaxed);
        if position.is_multiple_of(ANCHOR_EVERY) || self.is_other_half(now_ns) {
            self.write_time(position, now_ns);
            return self.cells.next.fetch_add(1, Ordering::Relaxed);
        }
        position
    }

    fn is_other_half(&self, now_ns: u64) -> bool {
        now_ns >> HALF_BITS != self.cells.half.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn write_time(&self, position: u64, now_ns: u64) {
        let half = now_ns >> HALF_BITS;
        let before = self.cells.half.load(Ordering::Relaxed);
        self.cells.half.store(half, Ordering::Release);
        self.write(position, now_ns, Entry::time(half, before));
    }

    #[inline]
    fn write(&self, position: u64, now_ns: u64, entry: Entry) -> bool {
        self.write_interrupted(position, now_ns, entry, |_| ())
    }

    #[inline]
    fn write_interrupted(
        &self,
        position: u64,
        now_ns: u64,
        entry: Entry,
        interrupt: impl Fn(Step),
    ) -> bool {
        interrupt(Step::Reserved);
        let (lap, place) = self.laps.locate(position);
        let written = self
            .records
            .get(place)
            .is_some_and(|record| record.write(lap, now_ns, entry, interrupt));
        if !written {
            self.count_lost();
        }
        written
    }

    #[cold]
    fn count_lost(&self) {
        self.cells.lost.fetch_add(1, Ordering::Relaxed);
    }
}
