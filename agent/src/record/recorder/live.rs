//! Recordings of live allocations: sending, moving and removing their samples.

use unikprof_proto::code::mode;
use unikprof_proto::live::{Encoder, Sample};

use super::Recorder;
use crate::agent::AnyAgent;
use crate::agent::recordings::{Phase, Recording};
use crate::count::live::{Held, LiveEntry, LiveTable};
use crate::count::slot::{Owned, Slot};
use crate::count::table::Table;

/// The maximum number of buckets that one frame of an answer examines.
const ENCODE_BUDGET: u32 = 512;
/// Buckets that are searched in one piece, during which a slot is owned.
const MOVE_BUDGET: u32 = 16;
/// Buckets from which one poll removes samples.
const REAP_BUDGET: u32 = 256;
/// Time to the next call while there is more to remove.
const SOON_NS: u64 = 1_000_000;

/// Encoded live samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveRun {
    /// How many.
    pub(crate) count: u32,
    /// The bytes that they take.
    pub(crate) bytes: usize,
    /// The bucket to continue with.
    pub(crate) until: u32,
}

impl Recorder<'_> {
    /// Moves the stacks of some live allocations of this vCPU out of the condemned segment. An allocation for whose
    /// stack there is no room is given up.
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
            for (index, entry) in live.each(bucket) {
                let place = entry.held.place;
                let segment = table.segment_of(place);
                if entry.held.vcpu != vcpu || table.condemned() >> segment & 1 == 0 {
                    continue;
                }
                moved |= entry.held.recordings;
                if let Ok(place) = table.move_stack(place, owned.path_cells().begin()) {
                    let held = Held {
                        place,
                        ..entry.held
                    };
                    live.update(bucket, index, &entry, held);
                } else if live.remove_entry(bucket, &entry) {
                    self.count_given_up(slot, entry.held.recordings);
                }
            }
        }
        table.set_unmoved(start);
        // Nodes that an answer has not announced may be needed now.
        for one in &mut self.state.recordings {
            one.folds += u64::from(moved >> one.index & 1 != 0);
        }
    }

    /// Counts a live allocation as aged in these recordings.
    fn count_given_up(&self, slot: &Slot<'_>, recordings: u8) {
        for one in self.recordings() {
            if recordings >> one.index & 1 != 0
                && let Some(cells) = slot.recording(one.index)
            {
                cells.counters.age(1, 0);
            }
        }
    }

    /// Removes samples of recordings that no longer exist; returns when to call again, on the monotonic clock.
    pub(super) fn reap(&mut self, agent: &AnyAgent<'_, '_>, now_ns: u64) -> Option<u64> {
        let live = agent.live()?;
        let is_live = |one: &Recording| one.settings.mode == mode::LIVE;
        let mut recordings = self.state.recordings.iter_mut();
        if recordings.any(|one| core::mem::take(&mut one.wants_reap)) {
            self.state.unreaped = live.buckets();
        }
        let end = self.state.unreaped;
        let start = end.saturating_sub(REAP_BUDGET);
        for bucket in start..end {
            for (index, entry) in live.each(bucket) {
                let needing = self.recordings().filter(|one| {
                    is_live(one) && one.phase != Phase::Delayed && one.has_live(&entry)
                });
                let needed = needing.fold(0, |bits, one| bits | 1 << one.index);
                if needed == 0 {
                    live.remove_entry(bucket, &entry);
                } else if needed != entry.held.recordings {
                    let held = Held {
                        recordings: needed,
                        ..entry.held
                    };
                    live.update(bucket, index, &entry, held);
                }
            }
        }
        self.state.unreaped = start;
        (start > 0).then(|| now_ns.saturating_add(SOON_NS))
    }
}

impl Recording {
    /// Whether a live allocation was sampled for this recording, and not for an earlier one with its index.
    fn has_live(&self, entry: &LiveEntry) -> bool {
        entry.held.recordings >> self.index & 1 != 0 && entry.born_ns >= self.settings.started_ns
    }

    /// Encodes the samples of a vCPU whose nodes have numbers up to `last`, from a bucket on. `None` at the end.
    ///
    /// Samples that were born after the end of the epoch are among them: they stand for those that are freed while the
    /// answer is sent.
    pub(crate) fn encode_live(
        &self,
        live: &LiveTable<'_>,
        vcpu: u32,
        (stacks, last): (&Table<'_>, u64),
        mut bucket: u32,
        buffer: &mut [u8],
    ) -> Option<LiveRun> {
        let end = live.buckets().min(bucket.saturating_add(ENCODE_BUDGET));
        if bucket >= end {
            return None;
        }
        let mut encoder = Encoder::new(self.settings.started_ns, buffer);
        let mut count = 0;
        while bucket < end && encoder.has_room_for(LiveTable::SLOTS) {
            let wanted =
                |(_, entry): &(usize, LiveEntry)| entry.held.vcpu == vcpu && self.has_live(entry);
            for (_, entry) in live.each(bucket).filter(wanted) {
                let node = stacks.number(entry.held.place);
                if (1..=last).contains(&node) {
                    encoder.push(&Sample {
                        node,
                        size: entry.size,
                        born_ns: entry.born_ns,
                    });
                    count += 1;
                }
            }
            bucket += 1;
        }
        Some(LiveRun {
            count,
            bytes: encoder.finish(),
            until: bucket,
        })
    }
}
