//! A recording's state on one vCPU. The recordings of a vCPU share its ticks and stacks; each has
//! its own sampling targets, counters and epochs.
//!
//! Why: docs/design/decisions.md#two-columns-of-counts-make-two-epochs,
//! docs/design/decisions.md#keeping-everything-does-not-starve-others.

use unikprof_proto::code::mode;
use unikprof_proto::message::{Counter, Snapshot};
use unikprof_proto::ring::Wait;

use crate::count::cells::{CounterCells, HistogramCells, SnapshotCells};
use crate::count::sampler::Sampler;
use crate::count::table::SEGMENTS;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, fence, prefetch};
use crate::stack::walk::{End, Walked, Way};

/// The most recordings that there can be at a time.
pub const MAX_RECORDINGS: usize = 4;

/// A recording's state on one vCPU, in the memory block. A sample uses the first two cache lines
/// and one bucket of each distribution.
#[repr(C, align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct RecordingCells {
    pub(crate) sampler: Sampler,
    /// The current epoch, in which samples are counted.
    epoch: AtomicU64,
    /// The monotonic time at which sampling ends by itself.
    until_ns: AtomicU64,
    /// [`Settings`].
    settings: AtomicU32,
    pub(crate) segments: SegmentsCell,
    /// The id of the recording that samples this vCPU; 0 = none.
    active: AtomicU64,
    /// The cost of all ticks since the recording began, in cycles.
    pub(crate) tick_cycles: AtomicU64,
    most_sample_cycles: AtomicU64,
    most_lateness_ns: AtomicU64,
    pub(crate) counters: CounterCells,
    /// The slot's number of ends when this recording ended, its own end included.
    ended: AtomicU32,
    /// The cost and the lateness of samples, in even and odd epochs.
    sample_cycles: [HistogramCells; 2],
    lateness_ns: [HistogramCells; 2],
    /// The clocks when sampling ended by itself: the monotonic clock (0 = it has not ended) and the
    /// vCPU's times.
    ended_at_ns: AtomicU64,
    ended_running_ns: AtomicU64,
    ended_blocked_ns: AtomicU64,
    block: BlockCells,
    /// Snapshots at the start of the last four epochs, at the index `epoch & 3`.
    boundaries: [SnapshotCells; 4],
}

/// The segments of the stack table in which a recording has counts, and those that it may not use.
///
/// One word. Bits 0 to 7: the segments with counts in the column of even epochs. Bits 8 to 15: the
/// same for odd epochs. Bits 16 to 23: the segments that the recording may *not* use. All other
/// counts of a column are zero. Only the slot's owner writes it.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SegmentsCell(AtomicU32);

const BARRED_SHIFT: u32 = 16;

const _: () = assert!(SEGMENTS <= 8);

impl SegmentsCell {
    /// Marks a segment as containing counts of `epoch`; `false` if the recording may not use the
    /// segment.
    #[inline]
    pub(crate) fn touch(&self, segment: u32, epoch: u64) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let bit = 1 << segment;
        let touched = word | bit << column_shift(epoch);
        if touched != word {
            if word & bit << BARRED_SHIFT != 0 {
                return false;
            }
            self.0.store(touched, Ordering::Relaxed);
        }
        true
    }

    /// The segments that [`touch`](Self::touch) refuses for `epoch`.
    pub(crate) fn refused(&self, epoch: u64) -> u32 {
        self.barred() & !self.of(epoch)
    }

    /// The segments with counts of `epoch`, a bit for each.
    pub(crate) fn of(&self, epoch: u64) -> u32 {
        self.0.load(Ordering::Relaxed) >> column_shift(epoch) & 0xff
    }

    /// The segments with counts of any epoch.
    pub(crate) fn all(&self) -> u32 {
        self.of(0) | self.of(1)
    }

    /// Marks `segments`, a bit for each, as containing no counts of `epoch`.
    pub(crate) fn clear(&self, epoch: u64, segments: u32) {
        let word = self.0.load(Ordering::Relaxed);
        let left = word & !((segments & 0xff) << column_shift(epoch));
        self.0.store(left, Ordering::Relaxed);
    }

    /// Forbids the recording to begin using `segments`, a bit for each, and allows all others. It
    /// may go on using a segment in which it has counts.
    pub(crate) fn bar(&self, segments: u32) {
        let word = self.0.load(Ordering::Relaxed);
        let barred = (segments & 0xff) << BARRED_SHIFT;
        self.0.store(word & !(0xff << BARRED_SHIFT) | barred, Ordering::Relaxed);
    }

    /// The segments that the recording may not begin to use.
    pub(crate) fn barred(&self) -> u32 {
        self.0.load(Ordering::Relaxed) >> BARRED_SHIFT & 0xff
    }
}

#[inline]
fn column_shift(epoch: u64) -> u32 {
    (epoch & 1) as u32 * 8
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(RecordingCells, tick_cycles) == 64);
    assert!(offset_of!(RecordingCells, counters) == 64 + 24);
};

/// The vCPU's open block, for a recording that counts blocked time.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct BlockCells {
    /// The id of the recording that opened the block. The other fields are valid only while it is
    /// active. A vCPU whose slot stays busy opens a block without it: release and acquire order
    /// then show a flip on another vCPU the other fields.
    recording: AtomicU64,
    /// The place of the stack that blocked; 0 = not known.
    stack: AtomicU32,
    /// The time until which the block has been counted: the monotonic clock and the vCPU's times.
    counted_at_ns: AtomicU64,
    counted_running_ns: AtomicU64,
    counted_blocked_ns: AtomicU64,
    /// The targets on the vCPU's blocked time, if the recording samples wall-clock time.
    sampler: Sampler,
    /// The number of times that a part of the block has been counted.
    parts: AtomicU32,
}

impl BlockCells {
    fn counted(&self) -> (u64, Times) {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let running_ns = get(&self.counted_running_ns);
        let blocked_ns = get(&self.counted_blocked_ns);
        (get(&self.counted_at_ns), Times { running_ns, blocked_ns })
    }

    fn set_counted(&self, at_ns: u64, times: Times) {
        self.counted_at_ns.store(at_ns, Ordering::Relaxed);
        self.counted_running_ns.store(times.running_ns, Ordering::Relaxed);
        self.counted_blocked_ns.store(times.blocked_ns, Ordering::Relaxed);
    }
}

/// The running and blocked time of a vCPU, each in ns since a fixed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) running_ns: u64,
    pub(crate) blocked_ns: u64,
}

/// The callers that are looked up in the caller table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lookup {
    /// None.
    #[default]
    None,
    /// The caller of the interrupted function.
    Leaf,
    /// All.
    EveryFrame,
}

/// A recording's settings for ticks, in one word: mode in bits 0 to 7, [`Lookup`] in 8 to 15, depth
/// in 16 to 31.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings(u32);

impl Settings {
    fn new(mode: u32, lookup: Lookup, depth: u32) -> Self {
        Self(mode & 0xff | (lookup as u32) << 8 | depth << 16)
    }

    #[inline]
    pub(crate) fn mode(self) -> u32 {
        self.0 & 0xff
    }

    #[inline]
    pub(crate) fn lookup(self) -> Lookup {
        match self.0 >> 8 & 0xff {
            0 => Lookup::None,
            1 => Lookup::Leaf,
            _ => Lookup::EveryFrame,
        }
    }

    #[inline]
    pub(crate) fn depth(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Whether blocked time is counted.
    #[inline]
    pub(crate) fn counts_blocked(self) -> bool {
        matches!(self.mode(), mode::WALL | mode::OFF_CPU)
    }

    /// Whether the timer is armed for the recording now. Blocked time is counted without ticks.
    #[inline]
    pub(crate) fn samples(self, blocked: bool) -> bool {
        match self.mode() {
            mode::CPU => true,
            mode::WALL => !blocked,
            _ => false,
        }
    }
}

/// The outcome of a stack walk, besides the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) walked: Walked,
    pub(crate) late: bool,
}

impl Sample {
    const WAYS: [Way; 3] = [Way::Table, Way::Bytes, Way::FramePointer];
    const ENDS: [End; 3] = [End::Root, End::Truncated, End::Broken];

    pub(crate) fn to_bits(self) -> u32 {
        let Walked { end, way, mixed } = self.walked;
        way as u32 | (end as u32) << 8 | u32::from(mixed) << 16 | u32::from(self.late) << 17
    }

    /// The inverse of [`to_bits`](Self::to_bits).
    pub(crate) fn from_bits(bits: u32) -> Self {
        let is = |number: u32, shift: u32| bits >> shift & 0xff == number;
        let way = Self::WAYS.into_iter().find(|way| is(*way as u32, 0));
        let end = Self::ENDS.into_iter().find(|end| is(*end as u32, 8));
        Self {
            walked: Walked {
                end: end.unwrap_or(End::Broken),
                way: way.unwrap_or(Way::FramePointer),
                mixed: bits >> 16 & 1 != 0,
            },
            late: bits >> 17 & 1 != 0,
        }
    }
}

/// The parameters with which a recording begins on each vCPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) recording: u64,
    pub(crate) epoch: u64,
    pub(crate) mode: u32,
    pub(crate) lookup: Lookup,
    pub(crate) depth: u32,
    /// The mean sampling period; in the heap modes, the mean interval in bytes.
    pub(crate) period_ns: u64,
    pub(crate) fixed: bool,
    pub(crate) until_ns: u64,
    pub(crate) seed: u64,
}

impl RecordingCells {
    /// Prefetches the memory that a tick is about to use, while the tick reads its clocks.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.sampler);
        prefetch(&self.tick_cycles);
    }

    /// Adds a sample's cost and lateness. The caller must own the slot.
    #[inline]
    pub(crate) fn add_costs(&self, cycles: u64, lateness_ns: u64) {
        let epoch = self.epoch();
        self.lateness_ns_of(epoch).add(lateness_ns, &self.most_lateness_ns);
        self.sample_cycles_of(epoch).add(cycles, &self.most_sample_cycles);
    }

    /// The cost of samples in cycles, in the current epoch or the one before.
    #[inline]
    pub(crate) fn sample_cycles_of(&self, epoch: u64) -> &HistogramCells {
        &self.sample_cycles[(epoch & 1) as usize]
    }

    /// The lateness of samples in ns, in the current epoch or the one before.
    #[inline]
    pub(crate) fn lateness_ns_of(&self, epoch: u64) -> &HistogramCells {
        &self.lateness_ns[(epoch & 1) as usize]
    }

    /// The id of the recording that samples this vCPU; 0 = none.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn settings(&self) -> Settings {
        Settings(self.settings.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn mode(&self) -> u32 {
        self.settings().mode()
    }

    /// The mean interval in bytes, if it samples allocations.
    #[cfg(feature = "heap")]
    pub(crate) fn interval_bytes(&self) -> Option<u64> {
        mode::is_heap(self.mode()).then(|| self.sampler.period_ns())
    }

    /// Whether it counts blocked time.
    #[inline]
    pub(crate) fn counts_blocked(&self) -> bool {
        self.settings().counts_blocked()
    }

    /// See [`Settings::samples`].
    #[inline]
    pub(crate) fn samples(&self, blocked: bool) -> bool {
        self.settings().samples(blocked)
    }

    /// Whether a tick of the driver (the recording that arms the timer), whose period is
    /// `period_ns`, is also one of this recording.
    #[inline]
    pub(crate) fn follows(&self, period_ns: u64, running_ns: u64, late: bool) -> bool {
        let followed = self.sampler.follow(running_ns, late);
        // With equal periods, every tick of the driver is one of this recording.
        followed || self.sampler.period_ns() == period_ns
    }

    /// Begins a recording.
    pub(crate) fn begin(&self, begin: &Begin, snapshot: &Snapshot) {
        self.counters.clear();
        self.tick_cycles.store(0, Ordering::Relaxed);
        for max in [&self.most_sample_cycles, &self.most_lateness_ns] {
            max.store(0, Ordering::Relaxed);
        }
        self.sample_cycles_of(begin.epoch).clear();
        self.lateness_ns_of(begin.epoch).clear();
        self.ended_at_ns.store(0, Ordering::Relaxed);
        self.close_block();
        self.segments.bar(0);
        let settings = Settings::new(begin.mode, begin.lookup, begin.depth);
        self.settings.store(settings.0, Ordering::Relaxed);
        self.until_ns.store(begin.until_ns, Ordering::Relaxed);
        let Begin { period_ns, fixed, seed, .. } = *begin;
        self.sampler.begin(period_ns, fixed, snapshot.running_ns, seed);
        self.block.sampler.begin(period_ns, fixed, snapshot.blocked_ns, seed.rotate_left(32));
        self.block.set_counted(snapshot.at_ns, times(snapshot));
        self.boundaries[(begin.epoch & 3) as usize].store(snapshot);
        self.epoch.store(begin.epoch, Ordering::Release);
        self.active.store(begin.recording, Ordering::Release);
    }

    /// Makes sampling end by itself.
    #[cfg(all(test, loom))]
    pub(crate) fn end_at(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Ends sampling; `number` is the slot's number of ends, this one included.
    pub(crate) fn end(&self, number: u32) {
        self.ended.store(number, Ordering::Relaxed);
        self.active.store(0, Ordering::Release);
    }

    /// Whether a recording at this index has ended since the slot's number of ends was `ends`.
    pub(crate) fn has_ended_since(&self, ends: u32) -> bool {
        let after = self.ended.load(Ordering::Relaxed).wrapping_sub(ends);
        (after as i32) > 0
    }

    /// The time and the vCPU's times at `now_ns` or at the end of the recording's time, whichever
    /// is earlier; but not before the open block was counted last. The vCPU must have a block. What
    /// it has run since then is taken to have come first, and its sleep after that.
    pub(crate) fn until_end(&self, now_ns: u64, times: Times) -> (u64, Times) {
        let (counted_at_ns, counted) = self.block.counted();
        let at_ns = now_ns.min(self.until_ns().max(counted_at_ns));
        if at_ns == now_ns {
            return (now_ns, times);
        }
        let passed_ns = at_ns.saturating_sub(counted_at_ns);
        let ran_ns = times.running_ns.saturating_sub(counted.running_ns).min(passed_ns);
        let slept_ns = times.blocked_ns.saturating_sub(counted.blocked_ns);
        let running_ns = counted.running_ns + ran_ns;
        let blocked_ns = counted.blocked_ns + slept_ns.min(passed_ns - ran_ns);
        (at_ns, Times { running_ns, blocked_ns })
    }

    /// Stores the clocks at which sampling ended by itself. The caller must then [end](Self::end)
    /// it.
    pub(crate) fn expire(&self, now_ns: u64, times: Times) {
        let Times { running_ns, blocked_ns } = times;
        self.ended_running_ns.store(running_ns, Ordering::Relaxed);
        self.ended_blocked_ns.store(blocked_ns, Ordering::Relaxed);
        self.ended_at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// `now`, or the moment at which sampling ended if it ended by itself.
    pub(crate) fn at_the_end(&self, now: Snapshot) -> Snapshot {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let running_ns = get(&self.ended_running_ns);
        let blocked_ns = get(&self.ended_blocked_ns);
        match get(&self.ended_at_ns) {
            0 => now,
            at_ns => self.earlier(now, at_ns, Times { running_ns, blocked_ns }),
        }
    }

    /// The vCPU's clocks at `at_ns`, when its times were `times`, of which `now` is a later
    /// snapshot. A tick may not read run states, so they are not known of that moment: the time
    /// since then that the vCPU neither ran nor slept is taken from the stolen time of the epoch,
    /// and from its offline time if there is more. A host may count a wait for a processor only
    /// when it ends, so there can be more than was counted: of that nothing is taken.
    pub(crate) fn earlier(&self, mut now: Snapshot, at_ns: u64, times: Times) -> Snapshot {
        let mut left_ns = now.at_ns.saturating_sub(at_ns);
        if let Some(state) = &mut now.runstate
            && left_ns != 0
        {
            let began = self.boundary(self.epoch()).runstate.unwrap_or_default();
            let ran_ns = now.running_ns.saturating_sub(times.running_ns);
            let slept_ns = now.blocked_ns.saturating_sub(times.blocked_ns);
            let mut take = |time: &mut u64, began_ns: u64, most_ns: u64| {
                let taken_ns = left_ns.min(most_ns).min(time.saturating_sub(began_ns));
                *time -= taken_ns;
                left_ns -= taken_ns;
            };
            take(&mut state.running_ns, began.running_ns, ran_ns);
            take(&mut state.blocked_ns, began.blocked_ns, slept_ns);
            take(&mut state.runnable_ns, began.runnable_ns, u64::MAX);
            take(&mut state.offline_ns, began.offline_ns, u64::MAX);
        }
        now.at_ns = at_ns;
        now.running_ns = times.running_ns;
        now.blocked_ns = times.blocked_ns;
        now
    }

    /// Starts the epoch `next`. `now` is the vCPU's snapshot at this moment, without counters. With
    /// `last`, nothing is counted in it, and the epoch that shares its column may not have been
    /// fetched yet.
    pub(crate) fn turn(&self, next: u64, last: bool, mut now: Snapshot) {
        now.counters = self.counters.read();
        now.tick_cycles = self.tick_cycles.load(Ordering::Relaxed);
        self.sample_cycles_of(self.epoch()).end(&self.most_sample_cycles);
        self.lateness_ns_of(self.epoch()).end(&self.most_lateness_ns);
        if !last {
            self.sample_cycles_of(next).clear();
            self.lateness_ns_of(next).clear();
        }
        self.boundaries[(next & 3) as usize].store(&now);
        self.epoch.store(next, Ordering::Release);
    }

    /// Counts a walked sample whose stack is in the table.
    #[inline]
    pub(crate) fn count(&self, sample: Sample) {
        let count = |counter| self.counters.add_owned(counter, 1);
        count(match sample.walked.way {
            Way::Table => Counter::ByTable,
            Way::Bytes => Counter::ByBytes,
            Way::FramePointer => Counter::ByFramePointer,
        });
        if sample.walked.mixed {
            count(Counter::Mixed);
        }
        match sample.walked.end {
            End::Root => {}
            End::Truncated => count(Counter::Truncated),
            End::Broken => count(Counter::Broken),
        }
        if sample.late {
            count(Counter::Late);
        }
    }

    /// Whether the recording counts blocked time and has no open block.
    #[inline]
    pub(crate) fn misses_block(&self) -> bool {
        self.active() != 0 && self.counts_blocked() && !self.has_block()
    }

    /// Whether the recording has an open block.
    #[inline]
    pub(crate) fn has_block(&self) -> bool {
        self.block.recording.load(Ordering::Acquire) == self.active() && self.active() != 0
    }

    /// Opens a block at `at_ns`: the vCPU blocks on the stack at this place, 0 if it is not known.
    pub(crate) fn open_block(&self, stack: u32, at_ns: u64, times: Times) {
        self.counters.add_shared(Counter::Blocks, 1);
        self.block.stack.store(stack, Ordering::Relaxed);
        let (at_ns, times) = self.not_before_counted(at_ns, times);
        self.block.set_counted(at_ns, times);
        self.block.parts.store(0, Ordering::Relaxed);
        self.block.recording.store(self.active(), Ordering::Release);
    }

    /// Returns since when blocked time that belongs to no block was not counted, and the targets on
    /// it up to `now_ns`, if wall-clock time is sampled. Marks it as counted. The caller must own
    /// the slot, and no block may be open.
    pub(crate) fn pass_other_waits(&self, now_ns: u64, times: Times) -> (u64, u64) {
        if self.mode() != mode::WALL {
            return (now_ns, 0);
        }
        let (since_ns, _) = self.block.counted();
        let (now_ns, times) = self.not_before_counted(now_ns, times);
        self.block.set_counted(now_ns, times);
        (since_ns, self.block.sampler.pass(times.blocked_ns))
    }

    /// The moment, or the one until which blocked time has been counted if that is later. Others see
    /// a vCPU that has woken and waits for its CPU blocked, and may have counted more than there is;
    /// and a guest may tell of a wait that began before the recording.
    fn not_before_counted(&self, at_ns: u64, times: Times) -> (u64, Times) {
        let (counted_at_ns, counted) = self.block.counted();
        let blocked_ns = times.blocked_ns.max(counted.blocked_ns);
        (at_ns.max(counted_at_ns), Times { blocked_ns, ..times })
    }

    /// Closes the block. Its time must have been counted before.
    pub(crate) fn close_block(&self) {
        self.block.recording.store(0, Ordering::Relaxed);
    }

    /// The place of the stack that the vCPU blocks on; 0 if it is not known.
    pub(crate) fn blocked_stack(&self) -> u32 {
        self.block.stack.load(Ordering::Relaxed)
    }

    /// Returns the open block's time up to `at_ns` that was not counted yet, and marks it as
    /// counted. The unit is that of the recording's mode: samples if it samples wall-clock time,
    /// otherwise ns.
    pub(crate) fn take_blocked(&self, at_ns: u64, times: Times) -> u64 {
        let (_, counted) = self.block.counted();
        let blocked_ns = times.blocked_ns.max(counted.blocked_ns);
        self.block.set_counted(at_ns, Times { blocked_ns, ..times });
        match self.mode() {
            mode::WALL => self.block.sampler.pass(blocked_ns),
            _ => blocked_ns - counted.blocked_ns,
        }
    }

    /// The open block's part that ends now, for the ring; call it before
    /// [`take_blocked`](Self::take_blocked).
    pub(crate) fn next_part(&self, now_ns: u64) -> Wait {
        let (since_ns, _) = self.block.counted();
        Wait {
            is_first: self.block.parts.fetch_add(1, Ordering::Relaxed) == 0,
            length_ns: now_ns.saturating_sub(since_ns),
            ..Wait::default()
        }
    }

    /// The current epoch, and the snapshot at its start, for a reader that does not own the slot.
    pub(crate) fn current(&self) -> (u64, Snapshot) {
        let epoch = self.epoch();
        // The epoch is stored after its snapshot, with release order.
        fence(Ordering::Acquire);
        (epoch, self.boundary(epoch))
    }

    /// The snapshot at the start of `epoch`, which is the end of the epoch before.
    pub(crate) fn boundary(&self, epoch: u64) -> Snapshot {
        self.boundaries[(epoch & 3) as usize].load()
    }

    /// The blocked time at the start of the current epoch: the platform's, and that of the run
    /// states.
    pub(crate) fn blocked_at_start(&self) -> (u64, u64) {
        self.boundaries[(self.epoch() & 3) as usize].blocked_ns()
    }

    /// Counts `samples` and `blocked` as aged instead of recorded, in the counters and in the
    /// snapshots after `epoch`, from whose column the counts were taken. The caller must own the
    /// slot.
    pub(crate) fn age(&self, epoch: u64, samples: u64, blocked: u64) {
        for later in epoch + 1..=self.epoch() {
            self.boundaries[(later & 3) as usize].age(samples, blocked);
        }
        self.counters.age(samples, blocked);
    }
}

pub(crate) fn times(snapshot: &Snapshot) -> Times {
    Times { running_ns: snapshot.running_ns, blocked_ns: snapshot.blocked_ns }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use unikprof_proto::message::Runstate;

    use super::*;
    use crate::count::sampler::Delivery;

    const PERIOD: u64 = 1_000_000;
    /// The times of one round in ns: running outside the block, running inside it before and after
    /// the sleep, and the sleep.
    const WORK: u64 = 204_643;
    const BEFORE: u64 = 61_803;
    const AFTER: u64 = 131_071;
    const SLEEP: u64 = 314_159;

    /// A simulated vCPU in a recording of wall-clock time.
    #[derive(Default)]
    struct Vcpu {
        recording: RecordingCells,
        times: Times,
        ticks: u64,
        blocked: u64,
    }

    impl Vcpu {
        fn sampled(fixed: bool) -> Self {
            let vcpu = Self::default();
            let begin = Begin {
                recording: 1,
                epoch: 1,
                mode: mode::WALL,
                lookup: Lookup::None,
                depth: 1,
                period_ns: PERIOD,
                fixed,
                until_ns: u64::MAX,
                seed: 42,
            };
            vcpu.recording.begin(&begin, &Snapshot::default());
            vcpu
        }

        fn left_ns(&self) -> u64 {
            self.recording.sampler.left_ns(self.times.running_ns)
        }

        /// Runs for `ns`; each tick is delivered at its target.
        fn work(&mut self, mut ns: u64) {
            while self.left_ns() <= ns {
                let left_ns = self.left_ns();
                ns -= left_ns;
                self.times.running_ns += left_ns;
                let delivery = self.recording.sampler.deliver(self.times.running_ns);
                assert!(matches!(delivery, Delivery::Due { .. }));
                self.ticks += 1;
            }
            self.times.running_ns += ns;
        }

        /// Blocks, and runs inside the block before and after the sleep.
        fn block(&mut self, sleep_ns: u64) {
            self.recording.open_block(7, 0, self.times);
            self.times.running_ns += BEFORE;
            self.times.blocked_ns += sleep_ns;
            self.times.running_ns += AFTER;
            self.wake();
        }

        fn wake(&mut self) {
            self.blocked += self.recording.take_blocked(0, self.times);
            self.recording.close_block();
        }

        /// Asserts that ticks and blocked samples equal the periods of running and of blocked time,
        /// within `give`.
        fn assert_shares(&self, give: u64) {
            let Times { running_ns, blocked_ns } = self.times;
            let (ran, slept) = (running_ns / PERIOD, blocked_ns / PERIOD);
            let account =
                std::format!("{} of {ran} run, {} of {slept} slept", self.ticks, self.blocked);
            assert!(self.ticks.abs_diff(ran) <= give, "{account}");
            assert!(self.blocked.abs_diff(slept) <= give, "{account}");
        }
    }

    /// Guards against running time inside a block, mostly that of upcalls, being counted as
    /// blocked. Fixed intervals and lengths without a simple ratio make the shares exact.
    #[test]
    fn what_runs_within_a_block_is_no_blocked_time() {
        let mut vcpu = Vcpu::sampled(true);
        for _ in 0..100_000 {
            vcpu.work(WORK);
            vcpu.block(SLEEP);
        }
        vcpu.assert_shares(1);
    }

    /// Three epochs each count a part of one block.
    #[test]
    fn a_block_that_is_counted_in_parts_is_counted_once() {
        let mut vcpu = Vcpu::sampled(true);
        for _ in 0..100_000 {
            vcpu.work(WORK);
            vcpu.recording.open_block(7, 0, vcpu.times);
            for _ in 0..3 {
                vcpu.times.running_ns += BEFORE;
                vcpu.times.blocked_ns += SLEEP / 3;
                vcpu.blocked += vcpu.recording.take_blocked(0, vcpu.times);
            }
            vcpu.times.running_ns += AFTER;
            vcpu.wake();
        }
        vcpu.assert_shares(1);
    }

    /// Guards against blocked time that runs backwards: the end of a recording is noticed late, and
    /// the vCPU was not blocked all the time since.
    #[test]
    fn an_end_that_is_noticed_late_takes_nothing_back() {
        let mut vcpu = Vcpu::sampled(true);
        vcpu.recording.until_ns.store(10 * PERIOD, Ordering::Relaxed);
        vcpu.times = Times { running_ns: PERIOD, blocked_ns: 8 * PERIOD };
        vcpu.recording.open_block(7, 9 * PERIOD, vcpu.times);
        vcpu.times.blocked_ns += PERIOD / 2;
        let (at_ns, times) = vcpu.recording.until_end(13 * PERIOD, vcpu.times);
        assert_eq!((at_ns, times.blocked_ns), (10 * PERIOD, 8 * PERIOD + PERIOD / 2));
    }

    /// Guards against run states that run backwards: the end of a recording is noticed late by
    /// another vCPU, this one waits for a processor, and the host has not counted that yet.
    #[test]
    fn an_end_that_is_noticed_late_takes_no_run_state_before_the_epoch() {
        let vcpu = Vcpu::sampled(false);
        let state = Runstate {
            running_ns: 7 * PERIOD,
            runnable_ns: 3 * PERIOD,
            blocked_ns: 2 * PERIOD,
            offline_ns: 90 * PERIOD,
        };
        let began = Snapshot {
            at_ns: 100 * PERIOD,
            running_ns: 7 * PERIOD,
            runstate: Some(state),
            ..Snapshot::default()
        };
        vcpu.recording.turn(2, false, began);
        // The run states were read first: the vCPU ran before the other clock was read.
        let now = Snapshot { at_ns: 140 * PERIOD, running_ns: 9 * PERIOD, ..began };
        let end = vcpu.recording.earlier(now, 101 * PERIOD, Times::default());
        assert_eq!(end.runstate, Some(state), "nothing of it is of this epoch");

        let now = Snapshot { runstate: Some(Runstate { offline_ns: 92 * PERIOD, ..state }), ..now };
        let end = vcpu.recording.earlier(now, 139 * PERIOD, Times::default());
        assert_eq!(end.runstate.map(|state| state.offline_ns), Some(91 * PERIOD));
    }

    /// Guards against blocked time that is counted twice: others have counted more than there was,
    /// as they see a vCPU that waits for its CPU blocked.
    #[test]
    fn what_was_counted_too_early_is_not_counted_again() {
        let recording = Vcpu::sampled(false).recording;
        let at = |blocked_ns| Times { running_ns: 0, blocked_ns };
        recording.open_block(7, 0, at(0));
        let early = recording.take_blocked(0, at(8 * PERIOD));
        let mut counted = early + recording.take_blocked(0, at(5 * PERIOD));
        recording.close_block();
        recording.open_block(7, 0, at(5 * PERIOD));
        counted += recording.take_blocked(0, at(10 * PERIOD));
        assert!(counted.abs_diff(10) <= 1, "{counted}");
    }

    /// A timer that stays armed ends sleeps. Guards against blocked and running time that have
    /// targets in common: those would be where the timer has ended a sleep.
    #[test]
    fn a_sleep_that_the_timer_ends_is_still_blocked_time() {
        let mut vcpu = Vcpu::sampled(false);
        for _ in 0..100_000 {
            vcpu.work(WORK);
            let mut left_ns = SLEEP;
            while left_ns > 0 {
                let sleep_ns = vcpu.left_ns().clamp(1, left_ns);
                left_ns -= sleep_ns;
                vcpu.block(sleep_ns);
                vcpu.work(0);
            }
        }
        // The counts' variance is a twelfth of them: six standard deviations of 70,000 are 460.
        vcpu.assert_shares(460);
    }
}
