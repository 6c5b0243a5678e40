//! The slot: one vCPU's state for all recordings, with one owner at a time.
//!
//! A tick takes the slot with one compare-and-swap; so does the code that starts, flips or ends a
//! recording. A tick never waits for it: if the slot is busy, the tick is counted as lost, or
//! deferred if it interrupted its own vCPU's block accounting. The recorder tries again later.
//!
//! A recording's samples are counted in *epochs*. A *flip* starts the next epoch; the counts of the
//! epoch that ended are then read, while ticks count in the recording's other [column](Column).
//!
//! Each recording has its own [cells](RecordingCells). One tick serves all recordings whose targets
//! have passed: it walks the stack once and counts it for each.
//!
//! Why: docs/design/decisions.md#due-recordings-are-judged-twice,
//! docs/design/decisions.md#a-tick-inside-the-agents-own-accounting.

use unikprof_proto::message::{Counter, Snapshot};
use unikprof_proto::ring::Wait;

use crate::count::delivery::{DeliveryCells, MeasurementsLeft};
use crate::count::points::PointCells;
use crate::count::recording::{
    Begin, Lookup, MAX_RECORDINGS, RecordingCells, Sample, Times, times,
};
use crate::count::table::{Column, Table, TableCells};
use crate::count::vcpu_snapshot::VcpuSnapshotCells;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::ring::Ring;
use crate::stack::path::{Path, PathCells};

/// The slot's fields in the memory block, except recordings and table.
#[repr(C, align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SlotCells {
    /// The slot's owner: [`FREE`], [`TAKEN`] or [`ACCOUNTING`].
    owner: AtomicU32,
    /// A bit for each recording that samples, and [`SNAPSHOT`].
    live: AtomicU32,
    /// The number of recordings that have ended. Only the slot's owner increments it.
    ends: AtomicU32,
    /// The state of the vCPU's block call: [`RUNNING`], [`BLOCKED`] or [`WOKEN`].
    blocked: AtomicU32,
    /// Start of the current block, in ns. 0 if the vCPU is not blocked.
    blocked_since_ns: AtomicU64,
    /// The id of the span that the vCPU works for; 0 = none.
    entered: AtomicU64,
    /// The nesting depth of the agent's own work on the vCPU; 0 = none.
    own_work: AtomicU32,
    pub(crate) measurements_left: MeasurementsLeft,
    /// The vCPU's allocated bytes.
    pub(crate) points: PointCells,
    table: TableCells,
    path: PathCells,
    deferred: DeferredCells,
    snapshot: VcpuSnapshotCells,
    pub(crate) delivery: DeliveryCells,
}

/// A bit in `live`: a client waits for a snapshot of the vCPU.
const SNAPSHOT: u32 = 1 << 31;
const _: () = assert!(MAX_RECORDINGS < 31);

/// The slot has no owner.
const FREE: u32 = 0;
/// A tick or the poll owns the slot.
const TAKEN: u32 = 1;
/// The vCPU's own block, wake or allocation call owns the slot. A tick that finds this state has
/// interrupted that call.
const ACCOUNTING: u32 = 2;

/// The vCPU is outside its block call.
const RUNNING: u32 = 0;
/// The vCPU is inside its block call.
const BLOCKED: u32 = 1;
/// The vCPU has woken, but its wait is not counted yet, because the slot was busy. Until it is
/// counted, its blocked time does not advance.
const WOKEN: u32 = 2;

/// The deferred sample: a tick that interrupts its own vCPU's block accounting writes it, and the
/// interrupted code counts it after releasing the slot.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct DeferredCells {
    /// The recordings that the sample is for, as [`Live`]; 0 = no sample is deferred.
    due: AtomicU64,
    length: AtomicU32,
    /// [`Sample::to_bits`].
    sample: AtomicU32,
    path: PathCells,
}

/// References to one vCPU's cells, recordings and table. They never change.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'m> {
    pub(crate) cells: &'m SlotCells,
    pub(crate) recordings: &'m [RecordingCells],
    pub(crate) table: Table<'m>,
}

/// Exclusive access to a slot, needed to count and to flip. Released on drop.
#[derive(Debug)]
pub(crate) struct Owned<'m> {
    slot: &'m Slot<'m>,
}

/// The recordings that sample at one moment, or some of them.
///
/// The lower half has a bit for each recording, the upper half the slot's number of ends at that
/// moment. Stored as one u64: reading two freshly written u32 halves as one word stalls store
/// forwarding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live(u64);

/// The combined needs of the live recordings for a tick. 16 bytes, so that it is returned in
/// registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The earliest time at which one of them ends by itself.
    pub(crate) until_ns: u64,
    /// The frames to keep and to look up.
    pub(crate) asked: Asked,
    /// Whether one of them counts blocked time.
    pub(crate) counts_blocked: bool,
    /// The index of the *driver*: of the recordings that sample now, the one with the shortest
    /// period. Its targets arm the timer; a target of another recording is served by the first
    /// delivery after it.
    driver: Option<u8>,
}

/// The greatest depth, and the most extensive lookup, of the live recordings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) depth: u16,
    pub(crate) lookup: Lookup,
}

const _: () = assert!(size_of::<Needs>() == 16);

/// The recordings for which the slot's owner counts a sample. None of them ends while the slot is
/// owned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served(Live);

/// A moment, for which time is counted: the vCPU's times until then, and where to tell of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'r> {
    pub(crate) ns: u64,
    pub(crate) times: Times,
    pub(crate) ring: Option<Ring<'r>>,
}

/// The result of counting a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    /// The place of its stack in the table, for the recordings not in `overflow`.
    pub(crate) place: u32,
    /// The recordings that counted it as overflow, a bit for each.
    pub(crate) overflow: u32,
}

impl Served {
    #[inline]
    pub(crate) fn recordings(self) -> Live {
        self.0
    }

    /// The recordings that have a bit in `bits`.
    #[cfg(feature = "heap")]
    pub(crate) fn only(self, bits: u32) -> Self {
        Self(self.0.with(self.0.bits() & bits))
    }
}

impl SlotCells {
    #[inline]
    pub(crate) fn table(&self) -> &TableCells {
        &self.table
    }

    /// Notes that the vCPU enters its block call.
    pub(crate) fn set_blocked(&self) {
        self.blocked.store(BLOCKED, Ordering::Relaxed);
    }

    /// Notes that the vCPU has left its block call. `counted` is false if its wait could not be
    /// counted yet.
    pub(crate) fn set_running(&self, counted: bool) {
        let state = if counted { RUNNING } else { WOKEN };
        self.blocked.store(state, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == BLOCKED
    }

    /// Whether the vCPU is outside its block call and its last wait has been counted.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == RUNNING
    }

    /// Whether the vCPU has woken from a wait that is not counted yet.
    #[inline]
    pub(crate) fn has_uncounted_wait(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == WOKEN
    }

    /// Whether a deferred sample has not been counted yet.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.due.load(Ordering::Acquire) != 0
    }

    /// The cells for the path of a deferred sample, for a tick that found the slot busy. `None` if
    /// the tick did not interrupt the vCPU's own block accounting, or if a sample is deferred
    /// already: there is room for one.
    pub(crate) fn deferred_path(&self) -> Option<&PathCells> {
        let interrupted = self.owner.load(Ordering::Relaxed) == ACCOUNTING;
        (interrupted && !self.has_deferred()).then_some(&self.deferred.path)
    }

    /// Defers a sample of the recordings `due`, whose path is in
    /// [`deferred_path`](Self::deferred_path).
    pub(crate) fn defer(&self, path: &Path<'_>, sample: Sample, due: Live) {
        let DeferredCells { length, .. } = &self.deferred;
        length.store(path.len() as u32, Ordering::Relaxed);
        let sample = sample.to_bits();
        self.deferred.sample.store(sample, Ordering::Relaxed);
        self.deferred.due.store(due.0, Ordering::Release);
    }

    /// Requests a snapshot of the vCPU: the vCPU's next upcall or block takes it. Called by the
    /// service.
    pub(crate) fn request_snapshot(&self) {
        self.live.fetch_or(SNAPSHOT, Ordering::Release);
    }

    /// Whether a snapshot of the vCPU is requested.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.live.load(Ordering::Acquire) & SNAPSHOT != 0
    }

    /// Ends the request: the snapshot was taken, or cannot be taken. Called on the vCPU.
    pub(crate) fn end_snapshot(&self) {
        self.live.fetch_and(!SNAPSHOT, Ordering::Release);
    }

    /// Stores the start of the vCPU's block.
    pub(crate) fn set_blocked_since(&self, now_ns: u64) {
        self.blocked_since_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The start of the vCPU's block in ns; 0 if it is not blocked.
    pub(crate) fn blocked_since_ns(&self) -> u64 {
        self.blocked_since_ns.load(Ordering::Relaxed)
    }

    /// Returns the start of the vCPU's block in ns and clears it.
    pub(crate) fn take_blocked_since(&self) -> u64 {
        let since_ns = self.blocked_since_ns();
        self.set_blocked_since(0);
        since_ns
    }

    /// Sets the id of the span that the vCPU works for; returns the one before. An upcall that
    /// interrupts this restores what it found.
    #[inline]
    pub(crate) fn enter(&self, span: u64) -> u64 {
        let before = self.entered.load(Ordering::Relaxed);
        self.entered.store(span, Ordering::Relaxed);
        before
    }

    /// The id of the span that the vCPU works for; 0 = none.
    #[inline]
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }

    pub(crate) fn enter_own_work(&self) {
        self.own_work.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave_own_work(&self) {
        self.own_work.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn in_own_work(&self) -> bool {
        self.own_work.load(Ordering::Relaxed) != 0
    }
}

impl Live {
    #[inline]
    fn new(bits: u32, ends: u32) -> Self {
        Self(u64::from(ends) << u32::BITS | u64::from(bits))
    }

    #[inline]
    fn ends(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.bits() == 0
    }

    /// A bit for each recording.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether there is no recording, or a request for a snapshot. One signed comparison, so that a
    /// tick needs no instruction more for the request.
    #[inline]
    pub(crate) fn is_empty_or_request(self) -> bool {
        self.bits().cast_signed() <= 0
    }

    #[inline]
    pub(crate) fn has_request(self) -> bool {
        self.bits() & SNAPSHOT != 0
    }

    /// The bits without the request for a snapshot.
    #[inline]
    pub(crate) fn recordings(self) -> Self {
        self.with(self.bits() & !SNAPSHOT)
    }

    /// The recordings of `bits`, at the same moment.
    #[inline]
    pub(crate) fn with(self, bits: u32) -> Self {
        Self::new(bits, self.ends())
    }

    #[inline]
    pub(crate) fn has(self, index: usize) -> bool {
        self.bits() >> index & 1 != 0
    }

    /// The index of the recording if there is at most one. It is out of range if there is none.
    #[inline]
    fn single(self) -> Option<usize> {
        let bits = self.bits();
        (bits & bits.wrapping_sub(1) == 0).then_some(bits.trailing_zeros() as usize)
    }
}

impl Needs {
    const NONE: Self = Self {
        until_ns: u64::MAX,
        asked: Asked { depth: 0, lookup: Lookup::None },
        counts_blocked: false,
        driver: None,
    };

    /// Adds the needs of a recording, which becomes the driver if it samples now and `is_shortest`.
    #[inline]
    fn and(
        self,
        index: usize,
        recording: &RecordingCells,
        blocked: bool,
        is_shortest: bool,
    ) -> Self {
        let settings = recording.settings();
        Self {
            until_ns: self.until_ns.min(recording.until_ns()),
            asked: Asked {
                depth: self.asked.depth.max(settings.depth()),
                lookup: self.asked.lookup.max(settings.lookup()),
            },
            counts_blocked: self.counts_blocked | settings.counts_blocked(),
            driver: if is_shortest && settings.samples(blocked) {
                Some(index as u8)
            } else {
                self.driver
            },
        }
    }
}

impl<'m> Slot<'m> {
    /// The recordings that sample now.
    #[inline]
    pub(crate) fn live(&self) -> Live {
        self.live_and_request().recordings()
    }

    /// The recordings that sample now, and whether a snapshot is requested.
    #[inline]
    pub(crate) fn live_and_request(&self) -> Live {
        // Read before `live`: a recording that ends in between counts as ended, even if another one
        // begins at its index.
        let ends = self.cells.ends.load(Ordering::Acquire);
        Live::new(self.cells.live.load(Ordering::Acquire), ends)
    }

    /// The last snapshot, unless another one is requested: the vCPU may be storing it.
    pub(crate) fn snapshot(&self) -> Option<&'m VcpuSnapshotCells> {
        (!self.cells.wants_snapshot()).then_some(&self.cells.snapshot)
    }

    /// The recordings of `live`, with their indices.
    #[inline]
    pub(crate) fn each(
        &self,
        live: Live,
    ) -> impl Iterator<Item = (usize, &'m RecordingCells)> + use<'m> {
        let recordings = self.recordings;
        let mut bits = live.bits();
        core::iter::from_fn(move || {
            let index = bits.trailing_zeros() as usize;
            let recording = recordings.get(index)?;
            bits &= bits - 1;
            Some((index, recording))
        })
    }

    /// The combined needs of these recordings for a tick.
    #[inline]
    pub(crate) fn needs(&self, live: Live, blocked: bool) -> Needs {
        let single = live.single();
        match single.and_then(|index| Some((index, self.recording(index)?))) {
            Some((index, only)) => Needs::NONE.and(index, only, blocked, true),
            None => self.needs_of_several(live, blocked),
        }
    }

    /// The same for any number, compiled once.
    #[inline(never)]
    pub(crate) fn needs_of_several(&self, live: Live, blocked: bool) -> Needs {
        self.each(live).fold(Needs::NONE, |needs, (index, recording)| {
            let shortest = self.driver(needs);
            let period_ns = recording.sampler.period_ns();
            let is_shortest =
                shortest.is_none_or(|(_, driver)| period_ns < driver.sampler.period_ns());
            needs.and(index, recording, blocked, is_shortest)
        })
    }

    /// The driver with its index; `None` if no recording samples now.
    #[inline]
    pub(crate) fn driver(&self, needs: Needs) -> Option<(usize, &'m RecordingCells)> {
        let index = usize::from(needs.driver?);
        Some((index, self.recording(index)?))
    }

    /// Whether the vCPU blocks, and a recording counts that.
    pub(crate) fn has_open_block(&self) -> bool {
        self.cells.is_blocked() && self.each(self.live()).any(|(_, one)| one.has_block())
    }

    /// Whether one of `live` counts blocked time.
    #[inline]
    pub(crate) fn counts_blocked(&self, live: Live) -> bool {
        self.each(live).any(|(_, recording)| recording.counts_blocked())
    }

    /// The recordings of `live` for which a timer delivery is a tick. `driver` is the index of the
    /// recording whose target armed the timer.
    #[inline]
    pub(crate) fn due(
        &self,
        live: Live,
        driver: usize,
        blocked: bool,
        late: bool,
        running_ns: u64,
    ) -> Live {
        match live.single() {
            Some(_) => live,
            None => self.due_of_several(live, driver, blocked, late, running_ns),
        }
    }

    #[inline(never)]
    fn due_of_several(
        &self,
        live: Live,
        driver: usize,
        blocked: bool,
        late: bool,
        running_ns: u64,
    ) -> Live {
        let mut bits = 1 << driver;
        let others = live.with(live.bits() & !bits);
        let period_ns = self.recording(driver).map_or(0, |driver| driver.sampler.period_ns());
        for (index, recording) in self.each(others) {
            if recording.samples(blocked) && recording.follows(period_ns, running_ns, late) {
                bits |= 1 << index;
            }
        }
        live.with(bits)
    }

    /// The recordings of `live` that have not ended since. They may end at any moment, unless the
    /// caller [owns](Owned::served) the slot.
    #[inline]
    pub(crate) fn left(&self, live: Live) -> Live {
        if self.cells.ends.load(Ordering::Acquire) == live.ends() {
            return live;
        }
        self.left_of_some(live)
    }

    #[cold]
    #[inline(never)]
    fn left_of_some(&self, live: Live) -> Live {
        let left = self.each(live).filter(|(_, recording)| !recording.has_ended_since(live.ends()));
        live.with(left.fold(0, |bits, (index, _)| bits | 1 << index))
    }

    /// Prefetches the memory that a tick is about to use, while the tick reads its clocks.
    #[inline]
    pub(crate) fn prefetch(&self, live: Live) {
        self.cells.path.prefetch();
        if let Some((_, first)) = self.each(live).next() {
            first.prefetch();
        }
    }

    #[inline]
    pub(crate) fn recording(&self, index: usize) -> Option<&'m RecordingCells> {
        self.recordings.get(index)
    }

    /// Begins a recording at an index that has no active one. A recording that used the index
    /// before must have been [ended](Owned::flip), so that no tick counts in it, not even one that
    /// began earlier. Both columns of the index must be zero.
    pub(crate) fn begin(&self, index: usize, begin: &Begin, snapshot: &Snapshot) {
        if let Some(recording) = self.recording(index) {
            recording.begin(begin, snapshot);
            if cfg!(feature = "heap") {
                self.cells.points.seed(begin.seed);
            }
            if recording.samples(false) {
                self.cells.measurements_left.demand();
            }
            self.cells.live.fetch_or(1 << index, Ordering::Release);
        }
    }

    /// Ends the recordings whose time is over, and returns the others. Called by a tick. If the
    /// slot is busy, a later tick ends them.
    pub(crate) fn expire(&self, now: Now<'_>) -> Live {
        let is_over = |(_, recording): (usize, &RecordingCells)| now.ns >= recording.until_ns();
        if !self.each(self.live()).any(is_over) {
            return self.live();
        }
        let owned = self.take();
        let live = self.live();
        let mut bits = live.bits();
        for (index, recording) in self.each(live) {
            if now.ns >= recording.until_ns() {
                bits &= !(1 << index);
                if let Some(owned) = &owned {
                    owned.expire(index, recording, now);
                }
            }
        }
        self.left(live.with(bits))
    }

    /// Takes the slot; `None` if it is busy.
    #[inline]
    pub(crate) fn take(&self) -> Option<Owned<'_>> {
        self.take_as(TAKEN)
    }

    #[inline]
    fn take_as(&self, owner: u32) -> Option<Owned<'_>> {
        self.cells
            .owner
            .compare_exchange(FREE, owner, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Not `then_some`: an `Owned` built and dropped on failure would release another
            // owner's slot.
            .then(|| Owned { slot: self })
    }

    /// Takes the slot outside upcalls: tries a bounded number of times while it is busy. An owner
    /// keeps it for about a microsecond, unless the owner's vCPU is not running.
    pub(crate) fn take_patiently(&self) -> Option<Owned<'_>> {
        self.take_patiently_as(TAKEN)
    }

    /// The same for the vCPU's own block, wake or allocation call. After releasing the slot, the
    /// caller must count the deferred sample of a tick that came meanwhile, until [none is
    /// left](SlotCells::has_deferred).
    pub(crate) fn take_for_accounting(&self) -> Option<Owned<'_>> {
        self.take_patiently_as(ACCOUNTING)
    }

    #[inline(never)]
    fn take_patiently_as(&self, owner: u32) -> Option<Owned<'_>> {
        // Two tries are enough for the model checker to reach every failure.
        const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };
        (0..TRIES).find_map(|_| {
            core::hint::spin_loop();
            self.take_as(owner)
        })
    }

    /// Discards the deferred sample; returns those of its recordings that have not ended since.
    pub(crate) fn drop_deferred(&self) -> Live {
        let due = self.deferred();
        self.cells.deferred.due.store(0, Ordering::Release);
        self.left(due)
    }

    fn deferred(&self) -> Live {
        Live(self.cells.deferred.due.load(Ordering::Acquire))
    }
}

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.cells.owner.store(FREE, Ordering::Release);
    }
}

impl<'m> Owned<'m> {
    /// The cells for the path of a sample.
    #[inline]
    pub(crate) fn path_cells(&self) -> &'m PathCells {
        &self.slot.cells.path
    }

    /// The cells of a requested snapshot. The caller is the vCPU itself.
    pub(crate) fn snapshot(&self) -> &'m VcpuSnapshotCells {
        &self.slot.cells.snapshot
    }

    /// The recordings of `due` that have not ended since `due` was read; none ends while the
    /// slot is owned. `None` if all have: the sample must then be dropped, as the recorder may be
    /// clearing their counts.
    #[inline]
    pub(crate) fn served(&self, due: Live) -> Option<Served> {
        let left = self.slot.left(due);
        (!left.is_empty()).then_some(Served(left))
    }

    /// Counts a walked sample for each of the recordings `served`, in the table or as overflow.
    #[inline(always)]
    pub(crate) fn record(&self, path: &Path<'_>, sample: Sample, served: Served) -> Recorded {
        let mut recorded = Recorded { place: 0, overflow: 0 };
        let kept = self.slot.table.keep(path);
        for (index, recording) in self.slot.each(served.0) {
            let place = match kept {
                Ok(place) if self.add(index, recording, place, 1) => Some(place),
                Ok(_) => self.add_outside(index, recording, path),
                Err(_) => None,
            };
            match place {
                Some(place) => {
                    recorded.place = place;
                    recording.count(sample);
                }
                None => {
                    recorded.overflow |= 1 << index;
                    recording.counters.add_owned(Counter::Overflow, 1);
                }
            }
        }
        recorded
    }

    /// The same outside ticks, compiled once.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_cold(&self, path: &Path<'_>, sample: Sample, served: Served) -> Recorded {
        self.record(path, sample, served)
    }

    /// Adds to a stack's count of the current epoch; `false` if the recording may not use the
    /// stack's segment.
    #[inline]
    fn add(&self, index: usize, recording: &RecordingCells, place: u32, weight: u64) -> bool {
        let table = &self.slot.table;
        let epoch = recording.epoch();
        let may_count = recording.segments.touch(table.segment_of(place), epoch);
        if may_count {
            table.add_to(place, Column::of(index, epoch), weight);
        }
        may_count
    }

    /// The same for a sample whose stack lies in a segment that the recording may not use: it is
    /// counted in another one.
    #[cold]
    #[inline(never)]
    fn add_outside(
        &self,
        index: usize,
        recording: &RecordingCells,
        path: &Path<'_>,
    ) -> Option<u32> {
        let place = self.keep_for(recording, path)?;
        self.add(index, recording, place, 1).then_some(place)
    }

    /// Finds or inserts a stack in a segment that the recording may use; returns its place, or
    /// `None` if there is no room.
    pub(crate) fn keep_for(&self, recording: &RecordingCells, path: &Path<'_>) -> Option<u32> {
        let refused = recording.segments.refused(recording.epoch());
        self.slot.table.keep_outside(refused, path).ok()
    }

    /// Counts the deferred sample; returns how, the recordings that it was counted for, and the
    /// sample. `None` if they all have ended.
    pub(crate) fn record_deferred(&self) -> Option<(Recorded, Live, Sample)> {
        let slot = self.slot;
        let DeferredCells { length, sample, path, .. } = &slot.cells.deferred;
        let length = length.load(Ordering::Relaxed) as usize;
        let path = path.resume(length);
        let sample = Sample::from_bits(sample.load(Ordering::Relaxed));
        let counted = self
            .served(slot.deferred())
            .map(|served| (self.record_cold(&path, sample, served), served.recordings(), sample));
        slot.drop_deferred();
        counted
    }

    /// Counts the blocked time since the last flip for each recording with an open block, when the
    /// vCPU wakes. Ends the recordings whose time was over before.
    pub(crate) fn end_block(&self, live: Live, now: Now<'_>) {
        for (index, recording) in self.slot.each(live) {
            if !recording.has_block() {
                recording.close_block();
            } else if now.ns >= recording.until_ns() {
                self.expire(index, recording, now);
            } else {
                self.count_blocked(index, recording, now.ns, now, true);
                recording.close_block();
            }
        }
    }

    /// Ends a recording whose time is over. An open block is counted up to the end of that time.
    fn expire(&self, index: usize, recording: &RecordingCells, now: Now<'_>) {
        let (at_ns, times) = self.count_until_end(index, recording, now);
        recording.close_block();
        recording.expire(at_ns, times);
        self.end(index, recording);
    }

    /// Counts an open block, and waits outside blocks, up to the present or the end of the
    /// recording's time; returns the clocks of that moment.
    fn count_until_end(
        &self,
        index: usize,
        recording: &RecordingCells,
        now: Now<'_>,
    ) -> (u64, Times) {
        if !recording.has_block() {
            self.count_other_waits(index, recording, now);
            return (now.ns, now.times);
        }
        let (at_ns, times) = recording.until_end(now.ns, now.times);
        self.count_blocked(index, recording, at_ns, Now { times, ..now }, false);
        (at_ns, times)
    }

    /// Counts the blocked time until now that belongs to no block, if wall-clock time is sampled. No
    /// block may be open.
    pub(crate) fn count_other_waits(&self, index: usize, recording: &RecordingCells, now: Now<'_>) {
        let (since_ns, targets) = recording.pass_other_waits(now.ns, now.times);
        if targets == 0 {
            return;
        }
        recording.counters.add_owned(Counter::BlockedOverflow, targets);
        if let Some(ring) = now.ring {
            let length_ns = now.ns.saturating_sub(since_ns);
            let wait =
                Wait { ring_bits: 1 << index, is_overflow: true, length_ns, ..Wait::default() };
            // For which span it waited nobody knows.
            ring.push_wait(now.ns, 0, 0, targets, wait);
        }
    }

    /// Counts the open blocks of the recordings that go on, while the vCPU blocks: the ring then
    /// tells of a long wait before it ends.
    pub(crate) fn count_open_blocks(&self, now: Now<'_>) {
        for (index, recording) in self.slot.each(self.slot.live()) {
            if recording.has_block() && now.ns < recording.until_ns() {
                self.count_blocked(index, recording, now.ns, now, false);
            }
        }
    }

    /// Counts the blocked time of the open block until `at_ns`, of which the times are, and writes
    /// what it counted to the ring now, and whether the vCPU has woken. Blocked time is
    /// counted here and in [`count_other_waits`](Self::count_other_waits) only, so that the ring's
    /// records sum to the counters.
    fn count_blocked(
        &self,
        index: usize,
        recording: &RecordingCells,
        at_ns: u64,
        now: Now<'_>,
        is_last: bool,
    ) {
        let part = recording.next_part(now.ns);
        let weight = recording.take_blocked(at_ns, now.times);
        let place = recording.blocked_stack();
        let is_counted = place != 0 && self.add(index, recording, place, weight);
        let counter = if is_counted { Counter::Blocked } else { Counter::BlockedOverflow };
        recording.counters.add_owned(counter, weight);
        if let Some(ring) = now.ring {
            let wait = Wait { ring_bits: 1 << index, is_last, is_overflow: !is_counted, ..part };
            ring.push_wait(now.ns, self.slot.cells.entered(), place, weight, wait);
        }
    }

    /// Starts the epoch `next` of a recording. `now` is the vCPU's snapshot at this moment, without
    /// counters. With `last`, sampling ends. Does nothing if `next` is the current epoch already.
    pub(crate) fn flip(
        &self,
        index: usize,
        next: u64,
        last: bool,
        now: Snapshot,
        ring: Option<Ring<'_>>,
    ) {
        let Some(recording) = self.slot.recording(index) else {
            return;
        };
        if recording.epoch() == next {
            return;
        }
        let now = recording.at_the_end(now);
        let until = Now { ns: now.at_ns, times: times(&now), ring };
        let (at_ns, times) = self.count_until_end(index, recording, until);
        let mut now = recording.earlier(now, at_ns, times);
        // A vCPU that was woken and waits for a processor is seen blocked by others until it runs:
        // blocked time can be taken back.
        let (blocked_ns, state_blocked_ns) = recording.blocked_at_start();
        now.blocked_ns = now.blocked_ns.max(blocked_ns);
        if let Some(states) = &mut now.runstate {
            states.blocked_ns = states.blocked_ns.max(state_blocked_ns);
        }
        if last {
            self.end(index, recording);
        }
        recording.turn(next, last, now);
    }

    /// Ends the sampling of a recording.
    fn end(&self, index: usize, recording: &RecordingCells) {
        let SlotCells { live, ends, .. } = self.slot.cells;
        let number = ends.load(Ordering::Relaxed).wrapping_add(1);
        live.fetch_and(!(1 << index), Ordering::Release);
        recording.end(number);
        // Stored last: a reader that sees the new number also sees that the recording is not live.
        ends.store(number, Ordering::Release);
    }
}
