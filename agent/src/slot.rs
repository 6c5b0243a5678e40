//! The slot: one vCPU's place in a recording, with one owner at a time.
//!
//! The tick takes the slot with one compare-and-swap; so does whoever starts, flips or ends a
//! recording. Nobody waits: a tick that finds the slot busy is counted as lost, and the recorder
//! comes back later. What is counted goes to the column of the current epoch; a flip makes the next
//! epoch current and leaves the column of the last to its reader.

use unikprof_proto::code::mode;
use unikprof_proto::message::Snapshot;

use crate::cells::{CounterCells, HistogramCells, SnapshotCells};
use crate::path::{Path, PathCells};
use crate::sampler::Sampler;
use crate::sync::{AtomicU32, AtomicU64, Ordering, add_owned, prefetch};
use crate::table::{Column, Table};
use crate::walk::{End, Walked, Way};

/// Everything of a slot but its table, in the memory block.
///
/// What every tick touches comes first, packed into few cache lines: a tick that comes seldom finds
/// them all cold.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct SlotCells {
    taken: AtomicU32,
    depth: AtomicU32,
    /// Whether the vCPU is inside its block call.
    blocked: AtomicU32,
    /// How many times over the vCPU is inside the agent's own work.
    own_work: AtomicU32,
    /// What is sampled.
    mode: AtomicU32,
    /// Whether callers are looked up: see [`Lookup`].
    lookup: AtomicU32,
    /// The id of the recording that samples this vCPU; 0 = none.
    active: AtomicU64,
    /// The epoch that is counted.
    epoch: AtomicU64,
    /// The monotonic time at which sampling ends by itself.
    until_ns: AtomicU64,
    /// Table nodes in use.
    used: AtomicU32,
    pub(crate) sampler: Sampler,
    pub(crate) tick_cycles: AtomicU64,
    pub(crate) counters: CounterCells,
    path: PathCells,
    pub(crate) sample_cycles: HistogramCells,
    pub(crate) lateness_ns: HistogramCells,
    /// Where a tick saw `until_ns` pass: the monotonic clock, 0 = not yet, and the vCPU's times.
    ended_at_ns: AtomicU64,
    ended_running_ns: AtomicU64,
    ended_blocked_ns: AtomicU64,
    block: BlockCells,
    /// Snapshots at the start of an epoch, by the epoch's id.
    boundaries: [SnapshotCells; 4],
    /// Table nodes in use at these moments.
    boundary_nodes: [AtomicU32; 4],
}

/// Where the vCPU blocks, while a recording of blocked time runs.
#[derive(Debug, Default)]
struct BlockCells {
    /// The recording that the rest belongs to; of another one it means nothing.
    recording: AtomicU64,
    /// The stack that blocked; 0 = not known.
    stack: AtomicU32,
    /// Up to where blocked time has been counted.
    counted_ns: AtomicU64,
}

/// How a vCPU has spent its time, as the sampler judges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) running_ns: u64,
    pub(crate) blocked_ns: u64,
}

/// Which callers are looked up in the caller table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// None.
    #[default]
    None,
    /// That of the interrupted function.
    Leaf,
    /// All.
    EveryFrame,
}

/// One vCPU's cells and table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'m> {
    pub(crate) cells: &'m SlotCells,
    pub(crate) table: Table<'m>,
}

/// The right to count and to flip. Given up when dropped.
#[derive(Debug)]
pub(crate) struct Owned<'m> {
    slot: Slot<'m>,
}

impl SlotCells {
    pub(crate) fn used(&self) -> &AtomicU32 {
        &self.used
    }

    /// Asks for what a tick will touch, while it still reads its clocks.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.sampler);
        prefetch(&self.counters);
        self.path.prefetch();
        self.sample_cycles.prefetch();
        self.lateness_ns.prefetch();
    }

    /// The recording that samples this vCPU; 0 = none.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.blocked.store(u32::from(blocked), Ordering::Relaxed);
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn enter_own_work(&self) {
        self.own_work.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave_own_work(&self) {
        self.own_work.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn in_own_work(&self) -> bool {
        self.own_work.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    pub(crate) fn lookup(&self) -> Lookup {
        match self.lookup.load(Ordering::Relaxed) {
            0 => Lookup::None,
            1 => Lookup::Leaf,
            _ => Lookup::EveryFrame,
        }
    }

    /// The clock that is sampled: running time, or running and blocked time.
    pub(crate) fn sampled_ns(&self, times: Times) -> u64 {
        if self.mode() == mode::WALL {
            times.running_ns.wrapping_add(times.blocked_ns)
        } else {
            times.running_ns
        }
    }

    /// Whether `recording` knows that the vCPU blocks.
    pub(crate) fn has_block(&self, recording: u64) -> bool {
        self.block.recording.load(Ordering::Relaxed) == recording
    }

    /// The vCPU blocks on `stack`, 0 where that is not known.
    pub(crate) fn open_block(&self, recording: u64, stack: u32, blocked_ns: u64) {
        self.counters.blocks.fetch_add(1, Ordering::Relaxed);
        self.block.stack.store(stack, Ordering::Relaxed);
        self.block.counted_ns.store(blocked_ns, Ordering::Relaxed);
        self.block.recording.store(recording, Ordering::Relaxed);
    }

    /// The vCPU has woken; what it blocked must be counted before.
    pub(crate) fn close_block(&self) {
        self.block.recording.store(0, Ordering::Relaxed);
    }

    /// Blocked time of the open block that was not counted yet, in the unit of its mode. From here on
    /// it is.
    pub(crate) fn take_blocked(&self, times: Times) -> u64 {
        if self.mode() == mode::WALL {
            return self.sampler.pass(self.sampled_ns(times));
        }
        let counted_ns = self.block.counted_ns.load(Ordering::Relaxed);
        self.block
            .counted_ns
            .store(times.blocked_ns.max(counted_ns), Ordering::Relaxed);
        times.blocked_ns.saturating_sub(counted_ns)
    }

    /// Ends sampling from within a tick: the recording's time is over.
    pub(crate) fn expire(&self, now_ns: u64, times: Times) {
        let Times {
            running_ns,
            blocked_ns,
        } = times;
        self.ended_running_ns.store(running_ns, Ordering::Relaxed);
        self.ended_blocked_ns.store(blocked_ns, Ordering::Relaxed);
        self.ended_at_ns.store(now_ns, Ordering::Relaxed);
        self.active.store(0, Ordering::Release);
    }

    /// The snapshot at the start of `epoch`, which is at the end of the one before.
    pub(crate) fn boundary(&self, epoch: u64) -> Snapshot {
        self.boundaries[(epoch & 3) as usize].load()
    }

    /// How many table nodes were in use at the start of `epoch`.
    pub(crate) fn boundary_nodes(&self, epoch: u64) -> u32 {
        self.boundary_nodes[(epoch & 3) as usize].load(Ordering::Relaxed)
    }
}

/// What the tick found, beside the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) walked: Walked,
    pub(crate) late: bool,
}

/// What a recording asks of each slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) recording: u64,
    pub(crate) epoch: u64,
    pub(crate) mode: u32,
    pub(crate) lookup: Lookup,
    pub(crate) depth: u32,
    pub(crate) period_ns: u64,
    pub(crate) fixed: bool,
    pub(crate) until_ns: u64,
    pub(crate) seed: u64,
}

impl<'m> Slot<'m> {
    /// Begins a recording from an empty table. Only while none is active, and after the last one was
    /// [ended](Owned::flip): no tick then counts, nor will one that was under way.
    pub(crate) fn begin(self, begin: &Begin, snapshot: &Snapshot) {
        let cells = self.cells;
        self.table.clear();
        cells.counters.clear();
        cells.tick_cycles.store(0, Ordering::Relaxed);
        cells.sample_cycles.clear();
        cells.lateness_ns.clear();
        cells.ended_at_ns.store(0, Ordering::Relaxed);
        cells.close_block();
        cells.mode.store(begin.mode, Ordering::Relaxed);
        cells.lookup.store(begin.lookup as u32, Ordering::Relaxed);
        cells.depth.store(begin.depth, Ordering::Relaxed);
        cells.until_ns.store(begin.until_ns, Ordering::Relaxed);
        let sampled_ns = cells.sampled_ns(times(snapshot));
        cells
            .sampler
            .begin(begin.period_ns, begin.fixed, sampled_ns, begin.seed);
        cells.boundaries[(begin.epoch & 3) as usize].store(snapshot);
        cells.epoch.store(begin.epoch, Ordering::Release);
        cells.active.store(begin.recording, Ordering::Release);
    }

    /// Takes the slot, unless somebody has it.
    #[inline]
    pub(crate) fn take(self) -> Option<Owned<'m>> {
        self.cells
            .taken
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Lazily: an `Owned` made and dropped on failure would free what somebody else has.
            .then(|| Owned { slot: self })
    }

    /// The same outside of upcalls: a busy slot is tried again, but not waited for. Who has it needs it for
    /// about a microsecond, unless its vCPU is not running.
    pub(crate) fn take_patiently(self) -> Option<Owned<'m>> {
        const TRIES: u32 = 64;
        (0..TRIES).find_map(|_| {
            core::hint::spin_loop();
            self.take()
        })
    }
}

fn times(snapshot: &Snapshot) -> Times {
    Times {
        running_ns: snapshot.running_ns,
        blocked_ns: snapshot.blocked_ns,
    }
}

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.cells.taken.store(0, Ordering::Release);
    }
}

impl<'m> Owned<'m> {
    /// Where the path of a sample is written.
    #[inline]
    pub(crate) fn path_cells(&self) -> &'m PathCells {
        &self.slot.cells.path
    }

    /// Counts a walked sample.
    #[inline]
    pub(crate) fn record(&self, path: &Path<'_>, sample: Sample) {
        let SlotCells {
            counters, epoch, ..
        } = self.slot.cells;
        let column = Column::of(epoch.load(Ordering::Relaxed));
        if self.slot.table.count(path, column).is_err() {
            return add_owned(&counters.overflow, 1);
        }
        add_owned(&counters.recorded, 1);
        let way = match sample.walked.way {
            Way::Table => &counters.by_table,
            Way::Bytes => &counters.by_bytes,
            Way::FramePointer => &counters.by_frame_pointer,
        };
        add_owned(way, 1);
        if sample.walked.mixed {
            add_owned(&counters.mixed, 1);
        }
        match sample.walked.end {
            End::Root => {}
            End::Truncated => add_owned(&counters.truncated, 1),
            End::Broken => add_owned(&counters.broken, 1),
        }
        if sample.late {
            add_owned(&counters.late, 1);
        }
    }

    /// The vCPU has woken: counts what it blocked since the last flip, unless `recording` has ended, which
    /// counted it.
    pub(crate) fn end_block(&self, recording: u64, times: Times) {
        let cells = self.slot.cells;
        if cells.active() == recording {
            self.count_blocked(times);
        }
        cells.close_block();
    }

    /// Counts the blocked time of the open block up to `times`.
    fn count_blocked(&self, times: Times) {
        let cells = self.slot.cells;
        let weight = cells.take_blocked(times);
        let stack = cells.block.stack.load(Ordering::Relaxed);
        if stack == 0 {
            return add_owned(&cells.counters.blocked_overflow, weight);
        }
        let column = Column::of(cells.epoch.load(Ordering::Relaxed));
        self.slot.table.add_to(stack, column, weight);
        add_owned(&cells.counters.blocked, weight);
    }

    /// Makes the next epoch current; `now` is the vCPU at this moment, without its counters. With
    /// `last`, sampling ends here. A flip that was done is not done again.
    pub(crate) fn flip(&self, next: u64, last: bool, mut now: Snapshot) {
        let cells = self.slot.cells;
        if cells.epoch.load(Ordering::Relaxed) == next {
            return;
        }
        let ended_at_ns = cells.ended_at_ns.load(Ordering::Relaxed);
        if ended_at_ns != 0 {
            now.at_ns = ended_at_ns;
            now.running_ns = cells.ended_running_ns.load(Ordering::Relaxed);
            now.blocked_ns = cells.ended_blocked_ns.load(Ordering::Relaxed);
        }
        let recording = cells.active.load(Ordering::Relaxed);
        if recording != 0 && cells.is_blocked() && cells.has_block(recording) {
            self.count_blocked(times(&now));
        }
        if last {
            cells.active.store(0, Ordering::Release);
        }
        now.counters = cells.counters.read();
        now.tick_cycles = cells.tick_cycles.load(Ordering::Relaxed);
        cells.boundaries[(next & 3) as usize].store(&now);
        cells.boundary_nodes[(next & 3) as usize].store(self.slot.table.used(), Ordering::Relaxed);
        cells.epoch.store(next, Ordering::Release);
    }
}
