//! The flight recorder's rings: timestamped records, one ring for each vCPU, in a separate memory
//! block. New records overwrite the oldest.
//!
//! Every context of a vCPU writes to the vCPU's ring, including an upcall that interrupts another
//! writer. A writer reserves a position, claims the record's place in memory, and publishes the
//! record together with its *lap*: how many times the ring was filled before. It drops and counts
//! its record if another writer has the place, which happens only if the whole ring was filled
//! while the writer was interrupted. A reader runs concurrently and accepts only records of the
//! expected lap. Nothing locks or waits.
//!
//! Why: docs/design/decisions.md#records-are-claimed-by-compare-and-swap,
//! docs/design/decisions.md#short-waits-are-recorded-only-beside-blocked-time,
//! docs/design/decisions.md#a-waits-record-has-what-was-counted.

mod laps;
mod names;
mod reader;
mod record;
#[cfg(all(test, loom))]
mod ring_model;
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests;

use core::mem::MaybeUninit;

use unikprof_proto::ring::{MAX_EVENT_NAMES, Wait};

use crate::ground::block::take;

pub(crate) use self::laps::Laps;
pub use self::names::EventNameError;
pub(crate) use self::names::{NameCells, Names};
pub(crate) use self::reader::{Reader, Run};
use self::record::HALF_BITS;
pub(crate) use self::record::{Entry, RecordCells, Step};
use crate::ground::sync::{AtomicU64, Ordering, prefetch};

/// Records at multiples of this position contain a full time, so that a reader finds one near every
/// position.
const ANCHOR_EVERY: u64 = 256;

/// The smallest capacity of a vCPU's ring, in records.
pub(crate) const MIN_RECORDS: usize = 64;

/// The memory that all rings share.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SharedCells {
    names_refused: AtomicU64,
    /// Records lost because the writer's vCPU is not known.
    unplaced: AtomicU64,
    /// When the time of day was last written, in ns; 0 = never.
    clock_ns: AtomicU64,
}

/// The memory of one ring, without its records.
#[repr(C, align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct RingCells {
    /// The position of the next record.
    next: AtomicU64,
    /// The half of the last record's time, which is the time's bits from [`HALF_BITS`] on.
    half: AtomicU64,
    /// The number of lost records, whose writers did not get the place.
    lost: AtomicU64,
    /// When the vCPU's times were last written, and the stolen time until then plus one; 0 = never.
    times_ns: AtomicU64,
    stolen: AtomicU64,
}

/// Whether `every_ns` have passed since `last_ns`, or `last_ns` is 0. If so, sets `last_ns` to
/// `now_ns`.
fn is_due(last_ns: &AtomicU64, now_ns: u64, every_ns: u64) -> bool {
    let last = last_ns.load(Ordering::Relaxed);
    let is_due = last == 0 || now_ns.saturating_sub(last) >= every_ns;
    if is_due {
        last_ns.store(now_ns.max(1), Ordering::Relaxed);
    }
    is_due
}

/// All vCPUs' rings, and the event names.
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

/// The size of a block, of any alignment, for the rings of `vcpus` vCPUs with at least `records`
/// records each, in bytes. See [`Agent::with_ring`](crate::Agent::with_ring).
pub const fn ring_bytes(vcpus: usize, records: usize) -> usize {
    let records = if records < MIN_RECORDS { MIN_RECORDS } else { records };
    // A ring's capacity is rounded down by less than one part in 128.
    let records = records.saturating_add(records / 64 + 1);
    let per_vcpu = size_of::<RingCells>().saturating_add(records.saturating_mul(RECORD));
    fixed_bytes().saturating_add(vcpus.saturating_mul(per_vcpu))
}

/// The error text if there are no rings.
pub(crate) const NO_RINGS: &str = if cfg!(feature = "ring") {
    "the agent was given no memory for a ring at its guest's start"
} else {
    "the agent was built without its flight recorder, the feature `ring`"
};

const RECORD: usize = size_of::<RecordCells>();

/// Bytes that do not depend on the number of vCPUs, and padding to align four slices.
const fn fixed_bytes() -> usize {
    size_of::<SharedCells>()
        + MAX_EVENT_NAMES * size_of::<NameCells>()
        + 4 * align_of::<RingCells>()
}

/// The capacity of each of `vcpus` rings in a block of `bytes`; `None` if it is below
/// [`MIN_RECORDS`].
fn records_per_vcpu(bytes: usize, vcpus: usize) -> Option<usize> {
    let rings = vcpus.checked_mul(size_of::<RingCells>())?;
    let for_records = bytes.checked_sub(fixed_bytes().checked_add(rings)?)?;
    let records = (for_records / RECORD).checked_div(vcpus)?;
    (records >= MIN_RECORDS).then_some(records)
}

impl<'m> Rings<'m> {
    /// Divides `block` into rings of equal size for `vcpus` vCPUs; `None` if it is too small.
    pub(crate) fn in_block(block: &'m mut [MaybeUninit<u8>], vcpus: usize) -> Option<Self> {
        let records = records_per_vcpu(block.len(), vcpus)?;
        let mut rest = block;
        let shared: &[SharedCells] = take(&mut rest, 1)?;
        let names = take(&mut rest, MAX_EVENT_NAMES)?;
        let cells = take(&mut rest, vcpus)?;
        let records = take(&mut rest, vcpus.checked_mul(records)?)?;
        Self::new(shared.first()?, names, cells, records)
    }

    /// Rings made of these parts: one for each element of `cells`, with the records divided evenly.
    pub(crate) fn new(
        shared: &'m SharedCells,
        names: &'m [NameCells],
        cells: &'m [RingCells],
        records: &'m [RecordCells],
    ) -> Option<Self> {
        let laps = Laps::new(records.len().checked_div(cells.len())?)?;
        Some(Self { shared, names, cells, records, laps })
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

    /// The capacity of each ring in records.
    pub(crate) fn capacity(&self) -> u64 {
        self.laps.capacity()
    }

    /// A number that is unique to this position of this vCPU, never 0.
    #[inline]
    pub(crate) fn number(&self, vcpu: u32, position: u64) -> u64 {
        let vcpus = self.cells.len() as u64;
        position.wrapping_mul(vcpus).wrapping_add(u64::from(vcpu) + 1)
    }

    /// Whether `every_ns` have passed since the time of day was last written. If so, it counts as
    /// written now.
    pub(crate) fn is_clock_due(&self, now_ns: u64, every_ns: u64) -> bool {
        is_due(&self.shared.clock_ns, now_ns, every_ns)
    }

    /// The event names.
    pub(crate) fn names(&self) -> Names<'m> {
        Names { cells: self.names, refused: &self.shared.names_refused }
    }

    /// Counts a record that is lost because its vCPU is not known.
    #[cold]
    pub(crate) fn count_unplaced(&self) {
        self.shared.unplaced.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of lost records of a vCPU's ring. Records whose vCPU is not known are counted for
    /// vCPU 0.
    pub(crate) fn lost(&self, vcpu: u32) -> u64 {
        let unplaced = match vcpu {
            0 => self.shared.unplaced.load(Ordering::Relaxed),
            _ => 0,
        };
        self.ring(vcpu).map_or(0, |ring| ring.lost()).saturating_add(unplaced)
    }
}

impl<'m> Ring<'m> {
    #[cfg(test)]
    pub(crate) fn new(cells: &'m RingCells, records: &'m [RecordCells]) -> Option<Self> {
        let laps = Laps::new(records.len())?;
        Some(Self { cells, records, laps })
    }

    /// The capacity in records.
    pub(crate) fn capacity(&self) -> u64 {
        self.laps.capacity()
    }

    /// Prefetches the memory that a writer uses first.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self.cells);
    }

    /// The position after the newest record.
    pub(crate) fn next(&self) -> u64 {
        self.cells.next.load(Ordering::Acquire)
    }

    /// The position of the oldest record.
    pub(crate) fn oldest(&self) -> u64 {
        self.next().saturating_sub(self.capacity())
    }

    /// The half of the last record's time; see [`HALF_BITS`].
    fn half(&self) -> u64 {
        self.cells.half.load(Ordering::Acquire)
    }

    /// Whether `every_ns` have passed since the vCPU's times were last written. If so, they count
    /// as written now.
    pub(crate) fn is_time_due(&self, now_ns: u64, every_ns: u64) -> bool {
        is_due(&self.cells.times_ns, now_ns, every_ns)
    }

    /// The stolen time since the last call, given the total; 0 in the first call.
    pub(crate) fn stolen_since(&self, stolen_ns: u64) -> u64 {
        let marked = stolen_ns.saturating_add(1);
        match self.cells.stolen.swap(marked, Ordering::Relaxed) {
            0 => 0,
            before => marked.saturating_sub(before),
        }
    }

    /// The number of lost records.
    pub(crate) fn lost(&self) -> u64 {
        self.cells.lost.load(Ordering::Relaxed)
    }

    /// Writes a record; returns its position, or `None` if it is lost.
    #[inline]
    pub(crate) fn push(&self, now_ns: u64, entry: Entry) -> Option<u64> {
        let position = self.reserve(now_ns);
        self.write(position, now_ns, entry).then_some(position)
    }

    /// Writes the record of a tick, with the id of the span that the vCPU works for; 0 = none.
    #[inline]
    pub(crate) fn push_tick(&self, now_ns: u64, entered: u64, entry: Entry) {
        self.push_entered(now_ns, entered);
        self.push(now_ns, entry);
    }

    #[inline]
    fn push_entered(&self, now_ns: u64, entered: u64) {
        if entered != 0 {
            self.push(now_ns, Entry::entered(entered));
        }
    }

    /// Writes a record whose number is computed from its position; returns that number, or `None`
    /// if it is lost.
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
        self.write(position, now_ns, Entry::named(kind, name, number)).then_some(number)
    }

    /// Writes a wait of the stack at `place`, of which a recording has counted `amount`, with the id
    /// of the span that the vCPU works for.
    pub(crate) fn push_wait(&self, now_ns: u64, entered: u64, place: u32, amount: u64, wait: Wait) {
        self.push_entered(now_ns, entered);
        let (entry, rest) = record::wait(place, amount, wait);
        self.push_two(now_ns, entry, rest);
    }

    /// Writes two 64-bit numbers as two adjacent records.
    pub(crate) fn push_pair(&self, now_ns: u64, kind: u8, first: u64, second: u64) {
        self.push_two(now_ns, Entry::new(kind, first, 0), second);
    }

    fn push_two(&self, now_ns: u64, entry: Entry, rest: u64) {
        const LAST: u64 = ANCHOR_EVERY - 1;
        let mut position = self.cells.next.fetch_add(2, Ordering::Relaxed);
        let is_anchor = position.is_multiple_of(ANCHOR_EVERY) || position % ANCHOR_EVERY == LAST;
        if is_anchor || self.is_other_half(now_ns) {
            self.write_time(position, now_ns);
            self.write_time(position.wrapping_add(1), now_ns);
            position = self.cells.next.fetch_add(2, Ordering::Relaxed);
        }
        self.write(position, now_ns, entry);
        self.write(position.wrapping_add(1), now_ns, Entry::rest(rest));
    }

    /// Writes a record as [`push`](Self::push) does, and calls `interrupt` wherever an upcall could
    /// interrupt.
    #[cfg(test)]
    pub(crate) fn push_interrupted(&self, now_ns: u64, entry: Entry, interrupt: impl Fn(Step)) {
        let position = self.reserve(now_ns);
        self.write_interrupted(position, now_ns, entry, interrupt);
    }

    /// Reserves a position. Writes a record of the full time first if one is due.
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
