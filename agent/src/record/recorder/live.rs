//! Recordings of live allocations: sending, moving and removing their samples.

use core::cell::Cell;

use unikprof_proto::code::mode;
use unikprof_proto::live::{Encoder, Sample};

use super::Recorder;
use crate::agent::AnyAgent;
use crate::agent::recordings::{Phase, Recording};
use crate::count::live::{LiveEntry, LiveTable};
use crate::count::slot::{Owned, Slot};
use crate::count::table::{CountRun, Table};

/// The maximum number of buckets that one frame of an answer examines.
const ENCODE_BUDGET: u32 = 512;
/// Buckets that are searched in one piece, during which a slot is owned.
const MOVE_BUDGET: u32 = 16;
/// Buckets from which one poll removes samples.
const REAP_BUDGET: u32 = 256;
/// Time to the next call while there is more to remove.
const SOON_NS: u64 = 1_000_000;

impl Recorder<'_> {
    /// Moves the stacks of some live allocations of this vCPU out of the condemned segment. An
    /// allocation for whose stack there is no room is given up.
    #[inline(never)]
    pub(super) fn move_live(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        vcpu: u32,
        slot: &Slot<'_>,
        owned: &Owned<'_>,
    ) {
        let table = &slot.table;
        let end = table.unmoved();
        let start = end.saturating_sub(MOVE_BUDGET);
        let mut moved = 0;
        // Buckets are left only if there are any.
        let Some(live) = agent.live() else {
            return;
        };
        for bucket in start..end {
            let given_up = Cell::new(0);
            let mut move_or_give_up = |entry: &LiveEntry| {
                let held = entry.held;
                let segment = table.segment_of(held.place());
                if held.vcpu() != vcpu || table.condemned() >> segment & 1 == 0 {
                    return held;
                }
                moved |= held.recordings();
                let place = table.move_stack(held.place(), owned.path_cells().begin());
                given_up.set(place.map_or(held.recordings(), |_| 0));
                place.map_or(held.only(0), |place| held.at(place))
            };
            while live.revise(bucket, 0, &mut move_or_give_up).is_some() {
                self.count_given_up(slot, given_up.get());
            }
        }
        table.set_unmoved(start);
        // Nodes that an answer has not announced may be needed now.
        for one in &mut self.state.recordings {
            one.folds += u64::from(moved >> one.index & 1 != 0);
        }
    }

    /// Counts a live allocation as aged in these recordings.
    fn count_given_up(&self, slot: &Slot<'_>, recordings: u32) {
        for one in self.recordings() {
            if recordings >> one.index & 1 != 0
                && let Some(cells) = slot.recording(one.index)
            {
                cells.counters.age(1, 0);
            }
        }
    }

    /// Removes samples of recordings that no longer exist; returns when to call again, on the
    /// monotonic clock.
    #[inline(never)]
    pub(super) fn reap(&mut self, agent: &AnyAgent<'_, '_>, now_ns: u64) -> Option<u64> {
        let live = agent.live()?;
        let is_live = |one: &Recording| one.settings.mode == mode::LIVE;
        let mut recordings = self.state.recordings.iter_mut();
        if recordings.any(|one| core::mem::take(&mut one.wants_reap)) {
            self.state.unreaped = live.buckets();
        }
        let end = self.state.unreaped;
        let start = end.saturating_sub(REAP_BUDGET);
        let mut needed = |entry: &LiveEntry| {
            let needing = self
                .recordings()
                .filter(|one| is_live(one) && one.phase != Phase::Delayed && one.has_live(entry));
            entry.held.only(needing.fold(0, |bits, one| bits | 1 << one.index))
        };
        for bucket in start..end {
            while live.revise(bucket, 0, &mut needed).is_some() {}
        }
        self.state.unreaped = start;
        (start > 0).then(|| now_ns.saturating_add(SOON_NS))
    }
}

impl Recording {
    /// Whether a live allocation was sampled for this recording, and not for an earlier one with
    /// its index.
    fn has_live(&self, entry: &LiveEntry) -> bool {
        entry.held.recordings() >> self.index & 1 != 0 && entry.born_ns >= self.settings.started_ns
    }

    /// Encodes the samples of a vCPU whose nodes have numbers up to `last`, from a bucket on;
    /// `until` is the bucket to continue with. `None` at the end.
    ///
    /// Samples that were born after the end of the epoch are among them: they stand for those that
    /// are freed while the answer is sent.
    pub(crate) fn encode_live(
        &self,
        live: &LiveTable<'_>,
        vcpu: u32,
        (stacks, last): (&Table<'_>, u64),
        mut bucket: u32,
        buffer: &mut [u8],
    ) -> Option<CountRun> {
        let end = live.buckets().min(bucket.saturating_add(ENCODE_BUDGET));
        if bucket >= end {
            return None;
        }
        let mut encoder = Encoder::new(self.settings.started_ns, buffer);
        let mut count = 0;
        while bucket < end && encoder.has_room_for(LiveTable::SLOTS) {
            live.revise(bucket, 0, &mut |entry| {
                let node = stacks.number(entry.held.place());
                if entry.held.vcpu() == vcpu && self.has_live(entry) && (1..=last).contains(&node) {
                    encoder.push(&Sample { node, size: entry.size, born_ns: entry.born_ns });
                    count += 1;
                }
                entry.held
            });
            bucket += 1;
        }
        Some(CountRun { count, bytes: encoder.finish(), until: bucket.into() })
    }
}
