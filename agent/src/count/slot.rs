//! The slot: one vCPU's place in all recordings, with one owner at a time.
//!
//! The tick takes the slot with one compare-and-swap; so does the code that starts, flips or ends a
//! recording. Nobody waits: a tick that finds the slot busy is counted as lost, and the recorder
//! comes back later. What is counted goes to the columns of the current epochs; a flip makes the next
//! epoch of a recording current and leaves the column of the last to its reader.
//!
//! Each recording has [cells](RecordingCells) of its own. One tick serves all whose targets it has reached: the stack
//! is walked once and counted for each.
//!
//! Why: docs/decisions.md#due-recordings-are-judged-twice, docs/decisions.md#a-tick-inside-the-agents-own-accounting.

use unikprof_proto::message::{Counter, Snapshot};

use crate::count::recording::{Begin, Lookup, RecordingCells, Sample, Times, times};
use crate::count::table::{Column, Table, TableCells};
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::stack::path::{Path, PathCells};

/// Everything of a slot but its recordings and its nodes, in the memory block.
#[repr(C, align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SlotCells {
    /// Who owns the slot: [`FREE`], [`TAKEN`] or [`ACCOUNTING`].
    taken: AtomicU32,
    /// A bit for each recording that samples.
    live: AtomicU32,
    /// How many recordings have ended. Who owns the slot counts them.
    ends: AtomicU32,
    /// Whether the vCPU is inside its block call: [`RUNNING`], [`BLOCKED`] or [`WOKEN`].
    blocked: AtomicU32,
    /// Since when, in ns; 0 if no recording needs it.
    blocked_since_ns: AtomicU64,
    /// How many times over the vCPU is inside the agent's own work.
    own_work: AtomicU32,
    table: TableCells,
    path: PathCells,
    deferred: DeferredCells,
}

/// Nobody owns the slot.
const FREE: u32 = 0;
/// A tick or the poll owns the slot.
const TAKEN: u32 = 1;
/// The vCPU's own code that blocks or wakes owns the slot. A tick that finds it has interrupted that code.
const ACCOUNTING: u32 = 2;

/// The vCPU is outside of its block call.
const RUNNING: u32 = 0;
/// The vCPU is inside its block call.
const BLOCKED: u32 = 1;
/// The vCPU has woken, and its wait is still to be counted: the slot was busy. Its blocked time stands still meanwhile.
const WOKEN: u32 = 2;

/// A sample of a tick that interrupted the vCPU's own block accounting, which counts it when it releases the slot.
/// Written by the tick, read by the code that it interrupted.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct DeferredCells {
    /// The recordings it is a sample of, as [`Live`]; 0 = there is no such sample.
    due: AtomicU64,
    length: AtomicU32,
    /// [`Sample::to_bits`].
    sample: AtomicU32,
    path: PathCells,
}

/// One vCPU's cells, recordings and table: where they lie, which never changes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'m> {
    pub(crate) cells: &'m SlotCells,
    pub(crate) recordings: &'m [RecordingCells],
    pub(crate) table: Table<'m>,
}

/// The right to count and to flip. Given up when dropped.
#[derive(Debug)]
pub(crate) struct Owned<'m> {
    slot: &'m Slot<'m>,
}

/// The recordings that sample, or some of them, as they were at one moment.
///
/// A bit for each recording, and in the upper half how many had ended by then: one word, so that nobody reads as a whole
/// what was just written in halves, for which processors wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live(u64);

/// What live recordings need of a tick together. 16 bytes: it is returned in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The first moment at which one of them ends by itself.
    pub(crate) until_ns: u64,
    /// The frames to keep, and to look up.
    pub(crate) asked: Asked,
    /// Whether one of them counts blocked time.
    pub(crate) counts_blocked: bool,
    /// The index of the recording whose targets arm the timer, of those that sample now: the one of the shortest period.
    /// The others' targets are met by the delivery that follows them.
    driver: Option<u8>,
}

/// The most frames that a recording keeps, and the most that one looks up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) depth: u16,
    pub(crate) lookup: Lookup,
}

const _: () = assert!(size_of::<Needs>() == 16);

/// The recordings that the owner of a slot counts for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served(Live);

impl Served {
    /// The recordings themselves.
    #[inline]
    pub(crate) fn recordings(self) -> Live {
        self.0
    }
}

impl SlotCells {
    #[inline]
    pub(crate) fn table(&self) -> &TableCells {
        &self.table
    }

    /// The vCPU enters its block call.
    pub(crate) fn set_blocked(&self) {
        self.blocked.store(BLOCKED, Ordering::Relaxed);
    }

    /// The vCPU has left its block call; `counted` says that no wait of it is left to count.
    pub(crate) fn set_running(&self, counted: bool) {
        let state = if counted { RUNNING } else { WOKEN };
        self.blocked.store(state, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == BLOCKED
    }

    /// Whether the vCPU is outside of its block call, and no wait is left to count.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == RUNNING
    }

    /// Whether the vCPU has woken from a wait that is still to be counted.
    #[inline]
    pub(crate) fn has_uncounted_wait(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) == WOKEN
    }

    /// Whether a tick's sample waits to be counted by the block accounting that the tick interrupted.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.due.load(Ordering::Acquire) != 0
    }

    /// Where a tick that found the slot busy writes its path, if it interrupted the vCPU's own block accounting, which
    /// then counts the sample. There is room for one.
    pub(crate) fn deferred_path(&self) -> Option<&PathCells> {
        let interrupted = self.taken.load(Ordering::Relaxed) == ACCOUNTING;
        (interrupted && !self.has_deferred()).then_some(&self.deferred.path)
    }

    /// Leaves a sample of these recordings to the block accounting.
    pub(crate) fn defer(&self, path: &Path<'_>, sample: Sample, due: Live) {
        let DeferredCells { length, .. } = &self.deferred;
        length.store(path.len() as u32, Ordering::Relaxed);
        let sample = sample.to_bits();
        self.deferred.sample.store(sample, Ordering::Relaxed);
        self.deferred.due.store(due.0, Ordering::Release);
    }

    /// Keeps since when the vCPU blocks; 0 if no recording needs it.
    pub(crate) fn set_blocked_since(&self, now_ns: u64) {
        self.blocked_since_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Since when the vCPU blocked, in ns, where somebody asks: once for each block.
    pub(crate) fn take_blocked_since(&self) -> Option<u64> {
        let since_ns = self.blocked_since_ns.load(Ordering::Relaxed);
        self.set_blocked_since(0);
        (since_ns != 0).then_some(since_ns)
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

    /// Those of `bits`, as they were then.
    #[inline]
    fn with(self, bits: u32) -> Self {
        Self::new(bits, self.ends())
    }

    /// Whether the recording of this index is one of them.
    #[inline]
    pub(crate) fn has(self, index: usize) -> bool {
        self.bits() >> index & 1 != 0
    }

    /// The index of the only one, if there is one only.
    #[inline]
    fn single(self) -> Option<usize> {
        let bits = self.bits();
        (bits & bits.wrapping_sub(1) == 0).then_some(bits.trailing_zeros() as usize)
    }
}

impl Needs {
    const NONE: Self = Self {
        until_ns: u64::MAX,
        asked: Asked {
            depth: 0,
            lookup: Lookup::None,
        },
        counts_blocked: false,
        driver: None,
    };

    /// What a recording needs beside these, which becomes the driver if it samples now and `is_shortest`.
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
        // First, so that no recording is taken for the one before it.
        let ends = self.cells.ends.load(Ordering::Acquire);
        Live::new(self.cells.live.load(Ordering::Acquire), ends)
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

    /// What these recordings need of a tick together.
    #[inline]
    pub(crate) fn needs(&self, live: Live, blocked: bool) -> Needs {
        let single = live.single();
        match single.and_then(|index| Some((index, self.recording(index)?))) {
            Some((index, only)) => Needs::NONE.and(index, only, blocked, true),
            None => self.needs_of_several(live, blocked),
        }
    }

    #[inline(never)]
    fn needs_of_several(&self, live: Live, blocked: bool) -> Needs {
        self.each(live)
            .fold(Needs::NONE, |needs, (index, recording)| {
                let shortest = self.driver(needs);
                let period_ns = recording.sampler.period_ns();
                let is_shortest =
                    shortest.is_none_or(|(_, driver)| period_ns < driver.sampler.period_ns());
                needs.and(index, recording, blocked, is_shortest)
            })
    }

    /// The recording whose targets arm the timer, with its index, if any samples now.
    #[inline]
    pub(crate) fn driver(&self, needs: Needs) -> Option<(usize, &'m RecordingCells)> {
        let index = usize::from(needs.driver?);
        Some((index, self.recording(index)?))
    }

    /// Whether one of `live` counts blocked time.
    #[inline]
    pub(crate) fn counts_blocked(&self, live: Live) -> bool {
        self.each(live)
            .any(|(_, recording)| recording.counts_blocked())
    }

    /// The recordings of `live` that a delivery is a tick of; `driver` is the index of the one whose target it was for.
    #[inline]
    pub(crate) fn due(
        &self,
        live: Live,
        driver: usize,
        blocked: bool,
        late: bool,
        times: Times,
    ) -> Live {
        match live.single() {
            Some(_) => live,
            None => self.due_of_several(live, driver, blocked, late, times),
        }
    }

    #[inline(never)]
    fn due_of_several(
        &self,
        live: Live,
        driver: usize,
        blocked: bool,
        late: bool,
        times: Times,
    ) -> Live {
        let mut bits = 1 << driver;
        let others = live.with(live.bits() & !bits);
        let period_ns = self
            .recording(driver)
            .map_or(0, |driver| driver.sampler.period_ns());
        for (index, recording) in self.each(others) {
            if recording.samples(blocked) && recording.follows(period_ns, times, late) {
                bits |= 1 << index;
            }
        }
        live.with(bits)
    }

    /// Those of `live` that have not ended since. Who does not [own](Owned::served) the slot must expect them
    /// to end at any moment.
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
        let left = self
            .each(live)
            .filter(|(_, recording)| !recording.has_ended_since(live.ends()));
        live.with(left.fold(0, |bits, (index, _)| bits | 1 << index))
    }

    /// Asks for what a tick will touch, while it still reads its clocks.
    #[inline]
    pub(crate) fn prefetch(&self, live: Live) {
        self.cells.path.prefetch();
        if let Some((_, first)) = self.each(live).next() {
            first.prefetch();
        }
    }

    /// The recording of this index.
    #[inline]
    pub(crate) fn recording(&self, index: usize) -> Option<&'m RecordingCells> {
        self.recordings.get(index)
    }

    /// Begins a recording at an index where none is active, after the last one was [ended](Owned::flip):
    /// no tick then counts there, nor will one that was under way. The counts of
    /// its columns must be zero.
    pub(crate) fn begin(&self, index: usize, begin: &Begin, snapshot: &Snapshot) {
        if let Some(recording) = self.recording(index) {
            recording.begin(begin, snapshot);
            self.cells.live.fetch_or(1 << index, Ordering::Release);
        }
    }

    /// Ends the recordings whose time is over, from within a tick, and returns those that go on. Where somebody
    /// has the slot, who ends or turns them just now, it is left to the next tick.
    pub(crate) fn expire(&self, now_ns: u64, times: Times) -> Live {
        let is_over = |(_, recording): (usize, &RecordingCells)| now_ns >= recording.until_ns();
        if !self.each(self.live()).any(is_over) {
            return self.live();
        }
        let owned = self.take();
        let live = self.live();
        let mut bits = live.bits();
        for (index, recording) in self.each(live) {
            if now_ns >= recording.until_ns() {
                bits &= !(1 << index);
                if let Some(owned) = &owned {
                    owned.expire(index, recording, now_ns, times);
                }
            }
        }
        self.left(live.with(bits))
    }

    /// Takes the slot, unless somebody has it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Owned<'_>> {
        self.take_as(TAKEN)
    }

    #[inline]
    fn take_as(&self, owner: u32) -> Option<Owned<'_>> {
        self.cells
            .taken
            .compare_exchange(FREE, owner, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Lazily: an `Owned` made and dropped on failure would free what somebody else has.
            .then(|| Owned { slot: self })
    }

    /// The same outside of upcalls: a busy slot is tried again a bounded number of times. Its owner needs it for
    /// about a microsecond, unless the owner's vCPU is not running.
    #[inline(never)]
    pub(crate) fn take_patiently(&self) -> Option<Owned<'_>> {
        self.take_patiently_as(TAKEN)
    }

    /// The same for the vCPU's own code that blocks or wakes. After it has released the slot it must count the sample
    /// of a tick that came meanwhile, until [none is left](SlotCells::has_deferred).
    pub(crate) fn take_for_accounting(&self) -> Option<Owned<'_>> {
        self.take_patiently_as(ACCOUNTING)
    }

    fn take_patiently_as(&self, owner: u32) -> Option<Owned<'_>> {
        // The model need not try often to see that all fail.
        const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };
        (0..TRIES).find_map(|_| {
            core::hint::spin_loop();
            self.take_as(owner)
        })
    }

    /// Forgets the deferred sample; returns the recordings that it is a sample of and that have not ended since.
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
        self.slot.cells.taken.store(FREE, Ordering::Release);
    }
}

impl<'m> Owned<'m> {
    /// Where the path of a sample is written.
    #[inline]
    pub(crate) fn path_cells(&self) -> &'m PathCells {
        &self.slot.cells.path
    }

    /// Those of the due recordings that have not ended between the look and the taking: none ends while the
    /// slot is owned. Where all have, nothing may be kept: their table may be cleared at any moment.
    #[inline]
    pub(crate) fn served(&self, due: Live) -> Option<Served> {
        let left = self.slot.left(due);
        (!left.is_empty()).then_some(Served(left))
    }

    /// Counts a walked sample for each recording that it serves; returns the place of its stack, if it was kept.
    #[inline(always)]
    pub(crate) fn record(&self, path: &Path<'_>, sample: Sample, served: Served) -> Option<u32> {
        let kept = self.slot.table.keep(path);
        for (index, recording) in self.slot.each(served.0) {
            match kept {
                Ok(place) if self.add(index, recording, place, 1) => recording.count(sample),
                _ => recording.counters.add_owned(Counter::Overflow, 1),
            }
        }
        kept.ok()
    }

    /// Adds to a stack's count of the current epoch; `false` if the recording may not use the stack's segment.
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

    /// Counts the deferred sample; returns its stack, if there was room, and the recordings that it was counted for.
    pub(crate) fn record_deferred(&self) -> Option<(Option<u32>, Live)> {
        let slot = self.slot;
        let DeferredCells {
            length,
            sample,
            path,
            ..
        } = &slot.cells.deferred;
        let length = length.load(Ordering::Relaxed) as usize;
        let path = path.resume(length);
        let sample = Sample::from_bits(sample.load(Ordering::Relaxed));
        let counted = self
            .served(slot.deferred())
            .map(|served| (self.record(&path, sample, served), served.recordings()));
        slot.drop_deferred();
        counted
    }

    /// The vCPU has woken: counts what it blocked since the last flip, for each recording that has its block. Ends the
    /// recordings whose time was over before.
    pub(crate) fn end_block(&self, live: Live, now_ns: u64, times: Times) {
        for (index, recording) in self.slot.each(live) {
            if !recording.has_block() {
                recording.close_block();
            } else if now_ns >= recording.until_ns() {
                self.expire(index, recording, now_ns, times);
            } else {
                self.count_blocked(index, recording, times);
                recording.close_block();
            }
        }
    }

    /// Ends a recording whose time is over. An open block is counted up to the end of that time.
    fn expire(&self, index: usize, recording: &RecordingCells, now_ns: u64, times: Times) {
        let (mut at_ns, mut times) = (now_ns, times);
        if recording.has_block() {
            (at_ns, times) = recording.until_end(now_ns, times);
            self.count_blocked(index, recording, times);
            recording.close_block();
        }
        recording.expire(at_ns, times);
        self.end(index, recording);
    }

    /// Counts the blocked time of the open block up to `times`.
    fn count_blocked(&self, index: usize, recording: &RecordingCells, times: Times) {
        let weight = recording.take_blocked(times);
        let place = recording.blocked_stack();
        let is_counted = place != 0 && self.add(index, recording, place, weight);
        let counter = if is_counted {
            Counter::Blocked
        } else {
            Counter::BlockedOverflow
        };
        recording.counters.add_owned(counter, weight);
    }

    /// Makes the next epoch of a recording current; `now` is the vCPU at this moment, without its counters.
    /// With `last`, sampling ends here. A flip that was done is not done again.
    pub(crate) fn flip(&self, index: usize, next: u64, last: bool, now: Snapshot) {
        let Some(recording) = self.slot.recording(index) else {
            return;
        };
        if recording.epoch() == next {
            return;
        }
        let mut now = recording.at_the_end(now);
        if recording.has_block() {
            let (at_ns, times) = recording.until_end(now.at_ns, times(&now));
            now.at_ns = at_ns;
            now.blocked_ns = times.blocked_ns;
            self.count_blocked(index, recording, times);
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
        // Last: who sees the number sees that the recording is none of the live ones.
        ends.store(number, Ordering::Release);
    }
}
