//! Cells of the slot that hold what travels with a profile: counters, snapshots, distributions.
//!
//! All are atomics written by one owner and read by anyone, so a reader never sees half a value.

use unikprof_proto::message::{BUCKETS, Counters, Runstate, Snapshot, bucket};
use unikprof_proto::nodes::put_varint;

use crate::ground::sync::{AtomicU64, Ordering, add_owned, prefetch};

/// The counters of one vCPU since the recording began.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct CounterCells {
    /// Ticks that took the slot; those that did not are in `lost` alone, so that a snapshot taken
    /// while a tick finds the slot busy still adds up.
    pub(crate) taken: AtomicU64,
    pub(crate) recorded: AtomicU64,
    pub(crate) aged: AtomicU64,
    pub(crate) overflow: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) masked: AtomicU64,
    pub(crate) idle: AtomicU64,
    pub(crate) early: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) truncated: AtomicU64,
    pub(crate) broken: AtomicU64,
    pub(crate) by_table: AtomicU64,
    pub(crate) by_bytes: AtomicU64,
    pub(crate) by_frame_pointer: AtomicU64,
    pub(crate) mixed: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) blocked: AtomicU64,
    pub(crate) blocked_overflow: AtomicU64,
    pub(crate) blocked_aged: AtomicU64,
}

impl CounterCells {
    pub(crate) fn read(&self) -> Counters {
        let fields = self.each().map(|cell| cell.load(Ordering::Relaxed));
        let taken_alone = Counters::from_array(fields);
        Counters {
            ticks: taken_alone.ticks.wrapping_add(taken_alone.lost),
            ..taken_alone
        }
    }

    /// Counts so many recorded samples, and so much blocked time, as aged instead. Only the owner of the slot calls it.
    pub(crate) fn age(&self, samples: u64, blocked: u64) {
        for (from, to, amount) in [
            (&self.recorded, &self.aged, samples),
            (&self.blocked, &self.blocked_aged, blocked),
        ] {
            from.store(
                from.load(Ordering::Relaxed).saturating_sub(amount),
                Ordering::Relaxed,
            );
            add_owned(to, amount);
        }
    }

    pub(crate) fn clear(&self) {
        for cell in self.each() {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// In the order of [`Counters`], with `taken` for its ticks.
    fn each(&self) -> [&AtomicU64; Counters::FIELDS] {
        let Self {
            taken,
            recorded,
            aged,
            overflow,
            lost,
            masked,
            idle,
            early,
            late,
            truncated,
            broken,
            by_table,
            by_bytes,
            by_frame_pointer,
            mixed,
            blocks,
            blocked,
            blocked_overflow,
            blocked_aged,
        } = self;
        [
            taken,
            recorded,
            aged,
            overflow,
            lost,
            masked,
            idle,
            early,
            late,
            truncated,
            broken,
            by_table,
            by_bytes,
            by_frame_pointer,
            mixed,
            blocks,
            blocked,
            blocked_overflow,
            blocked_aged,
        ]
    }
}

/// A [`Snapshot`]'s fields beside its counters.
const CLOCKS: usize = 10;

/// A [`Snapshot`] kept in the slot.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct SnapshotCells {
    clocks: [AtomicU64; CLOCKS],
    counters: [AtomicU64; Counters::FIELDS],
}

impl Default for SnapshotCells {
    fn default() -> Self {
        Self {
            clocks: core::array::from_fn(|_| AtomicU64::new(0)),
            counters: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl SnapshotCells {
    pub(crate) fn store(&self, snapshot: &Snapshot) {
        let Snapshot {
            at_ns,
            cycles,
            running_ns,
            blocked_ns,
            runstate,
            counters,
            tick_cycles,
        } = *snapshot;
        let known = u64::from(runstate.is_some());
        let r = runstate.unwrap_or_default();
        let clocks: [u64; CLOCKS] = [
            at_ns,
            cycles,
            running_ns,
            blocked_ns,
            tick_cycles,
            known,
            r.running_ns,
            r.runnable_ns,
            r.blocked_ns,
            r.offline_ns,
        ];
        for (cell, value) in self.clocks.iter().zip(clocks) {
            cell.store(value, Ordering::Relaxed);
        }
        for (cell, value) in self.counters.iter().zip(counters.to_array()) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Changes the counters as [`CounterCells::age`] does.
    pub(crate) fn age(&self, samples: u64, blocked: u64) {
        let mut snapshot = self.load();
        let counters = &mut snapshot.counters;
        counters.recorded = counters.recorded.saturating_sub(samples);
        counters.aged = counters.aged.saturating_add(samples);
        counters.blocked = counters.blocked.saturating_sub(blocked);
        counters.blocked_aged = counters.blocked_aged.saturating_add(blocked);
        self.store(&snapshot);
    }

    pub(crate) fn load(&self) -> Snapshot {
        let value = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let [
            at_ns,
            cycles,
            running_ns,
            blocked_ns,
            tick_cycles,
            known,
            r_running_ns,
            r_runnable_ns,
            r_blocked_ns,
            r_offline_ns,
        ] = self.clocks.each_ref().map(value);
        let runstate = Runstate {
            running_ns: r_running_ns,
            runnable_ns: r_runnable_ns,
            blocked_ns: r_blocked_ns,
            offline_ns: r_offline_ns,
        };
        Snapshot {
            at_ns,
            cycles,
            running_ns,
            blocked_ns,
            tick_cycles,
            runstate: (known == 1).then_some(runstate),
            counters: Counters::from_array(self.counters.each_ref().map(value)),
        }
    }
}

/// A distribution in logarithmic buckets.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct HistogramCells {
    max: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

impl Default for HistogramCells {
    fn default() -> Self {
        Self {
            max: AtomicU64::new(0),
            counts: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl HistogramCells {
    #[inline]
    pub(crate) fn add(&self, value: u64) {
        if let Some(cell) = self.counts.get(bucket(value)) {
            add_owned(cell, 1);
        }
        if value > self.max() {
            self.max.store(value, Ordering::Relaxed);
        }
    }

    /// Asks for the greatest value ahead of its use.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.max);
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        for cell in self.counts.iter().chain([&self.max]) {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// The pairs (bucket, count) that are not zero, as varints; answers the bytes written.
    pub(crate) fn encode(&self, buffer: &mut [u8]) -> usize {
        let mut length = 0;
        for (index, cell) in self.counts.iter().enumerate() {
            let count = cell.load(Ordering::Relaxed);
            if count > 0 {
                for value in [index as u64, count] {
                    length += put_varint(value, buffer.get_mut(length..).unwrap_or_default());
                }
            }
        }
        length
    }

    /// The most bytes [`encode`](Self::encode) writes.
    pub(crate) const ENCODED: usize = BUCKETS * 12;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every field has a word of its own: two fields that shared one would come back equal.
    #[test]
    fn a_snapshot_comes_back() {
        let mut snapshot = Snapshot {
            at_ns: 1,
            cycles: 2,
            running_ns: 3,
            runstate: Some(Runstate {
                running_ns: 4,
                runnable_ns: 5,
                blocked_ns: 6,
                offline_ns: 7,
            }),
            counters: Counters {
                ticks: 8,
                recorded: 9,
                aged: 27,
                overflow: 10,
                lost: 11,
                masked: 12,
                idle: 13,
                early: 14,
                late: 15,
                truncated: 16,
                broken: 17,
                by_table: 20,
                by_bytes: 21,
                by_frame_pointer: 22,
                mixed: 23,
                blocks: 24,
                blocked: 25,
                blocked_overflow: 26,
                blocked_aged: 28,
            },
            tick_cycles: 18,
            blocked_ns: 19,
        };
        let cells = SnapshotCells::default();
        cells.store(&snapshot);
        assert_eq!(cells.load(), snapshot);
        snapshot.runstate = None;
        cells.store(&snapshot);
        assert_eq!(cells.load(), snapshot);
    }

    #[test]
    fn a_histogram_fits_its_encoding() {
        let cells = HistogramCells::default();
        for index in 0..BUCKETS {
            cells.counts[index].store(u64::MAX, Ordering::Relaxed);
        }
        let mut buffer = [0; HistogramCells::ENCODED];
        assert_eq!(
            cells.encode(&mut buffer),
            BUCKETS * 11,
            "one byte of index, ten of count"
        );
        cells.clear();
        assert_eq!(cells.encode(&mut buffer), 0);
        cells.add(1000);
        cells.add(3);
        assert_eq!((cells.max(), cells.encode(&mut buffer)), (1000, 4));
    }
}
