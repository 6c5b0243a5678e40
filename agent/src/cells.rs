//! Cells of the slot that hold what travels with a profile: counters, snapshots, distributions.
//!
//! All are atomics written by one owner and read by anyone, so a reader never sees half a value.

use unikprof_proto::message::{BUCKETS, Counters, Runstate, Snapshot, bucket};
use unikprof_proto::nodes::put_varint;

use crate::sync::{AtomicU64, Ordering, add_owned, prefetch};

/// The counters of one vCPU since the recording began.
#[derive(Debug, Default)]
pub(crate) struct CounterCells {
    /// Ticks that took the slot; those that did not are in `lost` alone, so that a snapshot taken
    /// while a tick finds the slot busy still adds up.
    pub(crate) taken: AtomicU64,
    pub(crate) recorded: AtomicU64,
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
}

impl CounterCells {
    pub(crate) fn read(&self) -> Counters {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let lost = read(&self.lost);
        Counters {
            ticks: read(&self.taken).wrapping_add(lost),
            recorded: read(&self.recorded),
            overflow: read(&self.overflow),
            lost,
            masked: read(&self.masked),
            idle: read(&self.idle),
            early: read(&self.early),
            late: read(&self.late),
            truncated: read(&self.truncated),
            broken: read(&self.broken),
            by_table: read(&self.by_table),
            by_bytes: read(&self.by_bytes),
            by_frame_pointer: read(&self.by_frame_pointer),
            mixed: read(&self.mixed),
            blocks: read(&self.blocks),
            blocked: read(&self.blocked),
            blocked_overflow: read(&self.blocked_overflow),
        }
    }

    pub(crate) fn clear(&self) {
        let Self {
            taken,
            recorded,
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
        } = self;
        for cell in [
            taken,
            recorded,
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
        ] {
            cell.store(0, Ordering::Relaxed);
        }
    }
}

const SNAPSHOT_WORDS: usize = 27;

/// A [`Snapshot`] kept in the slot.
#[derive(Debug)]
pub(crate) struct SnapshotCells([AtomicU64; SNAPSHOT_WORDS]);

impl Default for SnapshotCells {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
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
            counters: c,
            tick_cycles,
        } = *snapshot;
        let known = u64::from(runstate.is_some());
        let r = runstate.unwrap_or_default();
        let words: [u64; SNAPSHOT_WORDS] = [
            at_ns,
            cycles,
            running_ns,
            tick_cycles,
            known,
            r.running_ns,
            r.runnable_ns,
            r.blocked_ns,
            r.offline_ns,
            c.ticks,
            c.recorded,
            c.overflow,
            c.lost,
            c.masked,
            c.idle,
            c.early,
            c.late,
            c.truncated,
            c.broken,
            blocked_ns,
            c.by_table,
            c.by_bytes,
            c.by_frame_pointer,
            c.mixed,
            c.blocks,
            c.blocked,
            c.blocked_overflow,
        ];
        for (cell, word) in self.0.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(&self) -> Snapshot {
        let word = |index: usize| {
            self.0
                .get(index)
                .map_or(0, |cell| cell.load(Ordering::Relaxed))
        };
        let runstate = Runstate {
            running_ns: word(5),
            runnable_ns: word(6),
            blocked_ns: word(7),
            offline_ns: word(8),
        };
        Snapshot {
            at_ns: word(0),
            cycles: word(1),
            running_ns: word(2),
            blocked_ns: word(19),
            tick_cycles: word(3),
            runstate: (word(4) == 1).then_some(runstate),
            counters: Counters {
                ticks: word(9),
                recorded: word(10),
                overflow: word(11),
                lost: word(12),
                masked: word(13),
                idle: word(14),
                early: word(15),
                late: word(16),
                truncated: word(17),
                broken: word(18),
                by_table: word(20),
                by_bytes: word(21),
                by_frame_pointer: word(22),
                mixed: word(23),
                blocks: word(24),
                blocked: word(25),
                blocked_overflow: word(26),
            },
        }
    }
}

/// A distribution in logarithmic buckets.
#[derive(Debug)]
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
