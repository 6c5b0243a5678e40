//! The aging of stacks: which segments of a table are condemned, whose counts are folded into
//! `aged`, and when a segment is freed.
//!
//! Each call does a bounded amount of work on each vCPU, and owns a slot only for pieces of a few
//! microseconds.

use unikprof_proto::code::mode;

use super::Recorder;
use crate::agent::AnyAgent;
use crate::agent::recordings::{Cursor, Recording};
use crate::count::live::LiveTable;
use crate::count::recording::{MAX_RECORDINGS, RecordingCells};
use crate::count::slot::Slot;
use crate::count::table::{Column, SEGMENTS};

/// The number of segments to keep free, as far as needed stacks allow it.
const FREE: usize = 2;

/// The maximum number of segments that recordings which keep all their stacks may use together
/// while no client fetches them. The others are left for recordings that keep the newest, or that a
/// client fetches.
const KEPT: u32 = SEGMENTS as u32 - FREE as u32;

/// The maximum number of segments that only one of them uses, if there are other recordings.
const KEPT_BY_ONE: u32 = SEGMENTS as u32 / 2;

/// Index entries that are swept, and nodes whose counts are folded, in one piece, during which the
/// slot is owned.
const SWEEP: u32 = 512;
const FOLD: u32 = 64;

/// The maximum number of pieces in one call, for all vCPUs.
const PIECES: u32 = 32;

/// Time to the next call while there is more to do.
const SOON_NS: u64 = 1_000_000;

/// Time to the next call while few segments are free and new stacks arrive.
const SHORT_NS: u64 = 100_000_000;

/// After reading a ring, a client has this time to read the stacks that its records refer to.
const PIN_NS: u64 = 2_000_000_000;

/// The next step on a vCPU.
enum Step {
    /// Set the segments that each recording must not begin to use.
    Bar,
    /// Keep the condemned segment, because it is needed.
    Reprieve,
    Condemn(u32),
    /// Remove entries of the condemned segment from the index.
    Sweep,
    /// Move stacks of live allocations out of the condemned segment.
    Move,
    /// Fold the counts of the recording of this index in the condemned segment.
    Fold(usize),
    /// Free the condemned segment.
    Free,
}

/// The segments held by recordings that keep all their stacks.
#[derive(Clone, Copy)]
struct Kept {
    /// The segments with their counts, unless a client fetches them.
    segments: u32,
    /// For each recording, the segments that it must not begin to use.
    bars: [u32; MAX_RECORDINGS],
}

/// The result of a piece of work.
enum Piece {
    /// There may be more to do.
    Done,
    /// Nothing can be done now.
    Nothing,
    /// A tick has the slot.
    Busy,
}

impl Recorder<'_> {
    /// A client reads the records of a ring: keep their stacks for a while, unless their memory is
    /// needed at once.
    pub(crate) fn pin(&mut self, now_ns: u64) {
        // Only after the last period has passed: a client that always reads must not pin stacks for
        // ever.
        if now_ns > self.state.pinned_until_ns.saturating_add(PIN_NS) {
            self.state.pinned_until_ns = now_ns.saturating_add(PIN_NS);
        }
    }

    /// Ages stacks; returns when to call again, on the monotonic clock, or `None` if the next poll
    /// is soon enough.
    pub(super) fn age(&mut self, agent: &AnyAgent<'_, '_>, now_ns: u64) -> Option<u64> {
        let mut pieces = PIECES;
        let mut is_soon = false;
        let mut is_short = false;
        for (vcpu, slot) in agent.slots() {
            slot.table.note_rate(now_ns);
            is_short |= slot.table.free_segments() < FREE && slot.table.is_growing();
            while let Some(left) = pieces.checked_sub(1) {
                match self.piece(agent, vcpu, slot, now_ns) {
                    Piece::Done => pieces = left,
                    Piece::Nothing => break,
                    Piece::Busy => {
                        is_soon = true;
                        break;
                    }
                }
            }
        }
        let after_ns = match (is_soon || pieces == 0, is_short) {
            (true, _) => SOON_NS,
            (false, true) => SHORT_NS,
            (false, false) => return None,
        };
        Some(now_ns.saturating_add(after_ns))
    }

    /// Does one piece of the next step on a vCPU.
    fn piece(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        vcpu: u32,
        slot: &Slot<'_>,
        now_ns: u64,
    ) -> Piece {
        let table = &slot.table;
        // Anew for each piece: where stacks go next changes with each segment that is freed.
        let kept = self.kept(agent, slot);
        let Some(step) = self.next_step(agent, slot, &kept, now_ns) else {
            return Piece::Nothing;
        };
        let Some(owned) = slot.take_patiently() else {
            return Piece::Busy;
        };
        match step {
            Step::Bar => {
                for (cells, bars) in slot.recordings.iter().zip(kept.bars) {
                    cells.segments.bar(bars);
                }
            }
            Step::Reprieve => table.reprieve(),
            Step::Condemn(segment) => {
                table.condemn(segment, agent.live().map_or(0, LiveTable::buckets));
            }
            Step::Move => self.move_live(agent, vcpu, slot, &owned),
            Step::Sweep => table.sweep(SWEEP),
            // The end of a block counts for its stack, even in a condemned segment.
            Step::Fold(_) | Step::Free if is_blocked_in(slot, table.condemned()) => {
                return Piece::Nothing;
            }
            Step::Fold(index) => {
                let recording = self.state.recordings.get_mut(index);
                let cells = slot.recording(index);
                return match recording.zip(cells) {
                    Some((recording, cells)) => {
                        recording.fold(vcpu, slot, cells, table.condemned().trailing_zeros())
                    }
                    None => Piece::Nothing,
                };
            }
            // A block ended after the step was chosen: there are counts again.
            Step::Free if first_with_counts_in(slot, table.condemned()).is_some() => {}
            Step::Free => table.free(agent.ring(vcpu).map_or(0, |ring| ring.next())),
        }
        Piece::Done
    }

    /// The next step on a vCPU; `None` if nothing can be done now.
    fn next_step(
        &self,
        agent: &AnyAgent<'_, '_>,
        slot: &Slot<'_>,
        kept: &Kept,
        now_ns: u64,
    ) -> Option<Step> {
        let table = &slot.table;
        let condemned = table.condemned();
        let mut barred = slot.recordings.iter().zip(kept.bars);
        if barred.any(|(cells, bars)| cells.segments.barred() != bars) {
            return Some(Step::Bar);
        }
        if condemned & kept.segments != 0 {
            return Some(Step::Reprieve);
        }
        let free = table.free_segments();
        if condemned == 0 {
            let oldest = table.oldest_segment(kept.segments);
            return oldest.filter(|_| free < FREE).map(Step::Condemn);
        }
        if !table.is_swept() {
            return Some(Step::Sweep);
        }
        let is_pressed = free == 0 && table.room() < table.segment_nodes() / 2;
        // Records in a ring may refer to stacks of the condemned segment, so with rings its memory
        // is taken only when no other segment is free.
        let is_needed = free == 0 || agent.rings().is_none();
        if !is_pressed && (!is_needed || now_ns < self.state.pinned_until_ns) {
            return None;
        }
        if cfg!(feature = "heap") && table.unmoved() != 0 {
            return Some(Step::Move);
        }
        match first_with_counts_in(slot, condemned) {
            Some(index) => {
                let recording = self.state.recordings.get(index);
                let may_fold = is_pressed && recording.is_some_and(Recording::keeps_newest);
                may_fold.then_some(Step::Fold(index))
            }
            None => Some(Step::Free),
        }
    }

    /// The segments that must be kept, because recordings that keep all have counts there and no
    /// client fetches them; and for each recording the segments that it must not begin to use.
    fn kept(&self, agent: &AnyAgent<'_, '_>, slot: &Slot<'_>) -> Kept {
        let keeps_all = |one: &&Recording| !one.keeps_newest() && one.lease().is_none();
        let (mut segments, mut shared) = (0, 0);
        for one in self.recordings().filter(keeps_all) {
            let own = one.needed_segments(slot);
            shared |= segments & own;
            segments |= own;
        }
        let mut bars = [0; MAX_RECORDINGS];
        if segments == 0 || agent.config().recordings == 1 {
            return Kept { segments: 0, bars };
        }
        let is_alone = self.recordings().count() == 1;
        let may_keep = if is_alone { KEPT } else { KEPT_BY_ONE };
        for one in self.recordings().filter(keeps_all) {
            let own = one.needed_segments(slot);
            let more = may_keep
                .saturating_sub((own & !shared).count_ones())
                .min(KEPT.saturating_sub(segments.count_ones()));
            if let Some(bars) = bars.get_mut(one.index()) {
                // Its stacks in older segments are inserted again, so that these can be freed.
                *bars = !slot.table.next_segments(own, segments, more) & 0xff;
            }
        }
        Kept { segments, bars }
    }
}

impl Recording {
    /// The segments with counts that no client has acknowledged, and that of the stack on which the
    /// vCPU blocks; a bit for each.
    fn needed_segments(&self, slot: &Slot<'_>) -> u32 {
        let Some(cells) = slot.recording(self.index()) else {
            return 0;
        };
        let epochs = (0..2).filter_map(|parity| self.epochs.in_column(parity));
        let blocked = blocked_in(slot, cells);
        epochs.fold(blocked, |needed, epoch| needed | cells.segments.of(epoch))
    }

    /// Whether a condemned segment waits for its counts to be fetched.
    pub(crate) fn wants_fetch(&self, agent: &AnyAgent<'_, '_>) -> bool {
        agent.slots().any(|(_, slot)| {
            let counts = slot.recording(self.index()).map(|cells| cells.segments.all());
            counts.is_some_and(|segments| segments & slot.table.condemned() != 0)
        })
    }

    /// Folds some of the counts of a segment into the counters of discarded samples; those of
    /// acknowledged epochs are left to be cleared. The caller owns the slot.
    fn fold(&mut self, vcpu: u32, slot: &Slot<'_>, cells: &RecordingCells, segment: u32) -> Piece {
        let touched = |parity: &u64| cells.segments.of(*parity) >> segment & 1 != 0;
        let epoch = |parity| self.epochs.in_column(parity);
        let Some(epoch) = (0..2).filter(touched).find_map(epoch) else {
            return Piece::Nothing;
        };
        let column = Column::of(self.index(), epoch);
        let from = self.folding.node(vcpu, segment, epoch);
        let (taken, next) = slot.table.take_counts(column, segment, from, FOLD);
        let (samples, blocked) = if self.settings().mode == mode::OFF_CPU {
            (0, taken.ran.saturating_add(taken.blocked))
        } else {
            (taken.ran, taken.blocked)
        };
        cells.age(epoch, samples, blocked);
        self.folds += u64::from(samples + blocked > 0);
        match next {
            Some(next) => self.folding = Cursor::at(vcpu, segment, epoch, next),
            None => {
                self.folding = Cursor::default();
                cells.segments.clear(epoch, 1 << segment);
            }
        }
        Piece::Done
    }
}

/// The index of the first recording with counts in these segments.
fn first_with_counts_in(slot: &Slot<'_>, segments: u32) -> Option<usize> {
    let mut all = slot.recordings.iter();
    all.position(|cells| cells.segments.all() & segments != 0)
}

/// Whether the vCPU blocks on a stack of these segments.
fn is_blocked_in(slot: &Slot<'_>, segments: u32) -> bool {
    let mut all = slot.recordings.iter();
    all.any(|cells| segments & blocked_in(slot, cells) != 0)
}

/// The segment of the stack on which the vCPU blocks for a recording, as a bit; 0 if there is none.
fn blocked_in(slot: &Slot<'_>, cells: &RecordingCells) -> u32 {
    match cells.blocked_stack() {
        0 => 0,
        place if cells.has_block() => 1 << slot.table.segment_of(place),
        _ => 0,
    }
}
