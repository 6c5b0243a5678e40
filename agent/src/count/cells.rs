//! The cells of the slot that are sent with a profile: counters, snapshots, distributions.
//!
//! All are atomics with one writer at a time, so a reader never sees half a value.
//!
//! Why: docs/design/decisions.md#sums-that-always-add-up.

use unikprof_proto::message::{BUCKETS, Counter, Counters, Runstate, Snapshot, bucket};
use unikprof_proto::varint::put_varint;

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, add_owned};

/// The counters of one vCPU since the recording began.
///
/// Ticks and recorded ticks are not stored: [`read`](Self::read) sums the outcomes. So the sums add
/// up for every reader, at whatever instruction the writer was interrupted.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct CounterCells {
    /// In the order of [`Counter`], rotated so that [`FIRST`], the counters of every sample, comes
    /// first. The cells of ticks and recorded ticks stay 0.
    cells: [AtomicU64; Counters::FIELDS],
}

/// The counter of the first cell.
const FIRST: usize = Counter::ByTable as usize;

/// The cell of the counter with this index in [`Counters::to_array`].
#[inline]
const fn place(index: usize) -> usize {
    (index + Counters::FIELDS - FIRST) % Counters::FIELDS
}

impl Default for CounterCells {
    fn default() -> Self {
        Self { cells: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl CounterCells {
    /// Adds to a counter that only the owner of the slot writes. The caller must own the slot.
    #[inline]
    pub(crate) fn add_owned(&self, counter: Counter, amount: u64) {
        add_owned(self.cell(counter), amount);
    }

    /// Adds to a counter that is also written without the slot.
    #[inline]
    pub(crate) fn add_shared(&self, counter: Counter, amount: u64) {
        self.cell(counter).fetch_add(amount, Ordering::Relaxed);
    }

    /// All counters. `ticks` is the sum of the outcomes; `recorded` is the sum of the three ways in
    /// which callers were found, less `aged`.
    pub(crate) fn read(&self) -> Counters {
        let mut counters = Counters::from_array(core::array::from_fn(|index| {
            self.cells[place(index)].load(Ordering::Relaxed)
        }));
        let walked = sum([counters.by_table, counters.by_bytes, counters.by_frame_pointer]);
        counters.recorded = walked.saturating_sub(counters.aged);
        counters.ticks =
            sum([walked, counters.overflow, counters.lost, counters.masked, counters.idle]);
        counters
    }

    /// Counts recorded samples and blocked time as aged instead. The caller must own the slot.
    pub(crate) fn age(&self, samples: u64, blocked: u64) {
        self.add_owned(Counter::Aged, samples);
        let counted = self.cell(Counter::Blocked);
        let left = counted.load(Ordering::Relaxed).saturating_sub(blocked);
        counted.store(left, Ordering::Relaxed);
        self.add_owned(Counter::BlockedAged, blocked);
    }

    pub(crate) fn clear(&self) {
        for cell in &self.cells {
            cell.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn cell(&self, counter: Counter) -> &AtomicU64 {
        &self.cells[place(counter as usize)]
    }
}

fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::wrapping_add)
}

/// The number of a [`Snapshot`]'s fields, without its counters.
const CLOCKS: usize = 14;

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
            allocated_bytes,
            freed_samples,
            delivery_cycles,
            deliveries_measured,
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
            allocated_bytes,
            freed_samples,
            delivery_cycles,
            deliveries_measured,
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

    /// The blocked time: the platform's, and that of the run states, 0 if it is not known.
    pub(crate) fn blocked_ns(&self) -> (u64, u64) {
        let [_, _, _, blocked_ns, _, _, _, _, state_blocked_ns, ..] = &self.clocks;
        (blocked_ns.load(Ordering::Relaxed), state_blocked_ns.load(Ordering::Relaxed))
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
            allocated_bytes,
            freed_samples,
            delivery_cycles,
            deliveries_measured,
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
            allocated_bytes,
            freed_samples,
            delivery_cycles,
            deliveries_measured,
        }
    }
}

/// A distribution over one epoch with logarithmic buckets. Counts saturate.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct HistogramCells {
    counts: [AtomicU32; CELLS],
    /// The greatest value; set when the epoch ends.
    max: AtomicU64,
}

/// The number of buckets: one in the model, because every cell is a point where the model checker
/// may switch threads.
const CELLS: usize = if cfg!(loom) { 1 } else { BUCKETS };

impl Default for HistogramCells {
    fn default() -> Self {
        Self { counts: core::array::from_fn(|_| AtomicU32::new(0)), max: AtomicU64::new(0) }
    }
}

impl HistogramCells {
    /// Adds a value to the current epoch. `max` is the epoch's greatest value so far, stored next
    /// to what every sample writes. The caller must own the slot.
    #[inline]
    pub(crate) fn add(&self, value: u64, max: &AtomicU64) {
        if let Some(cell) = self.counts.get(bucket(value)) {
            let count = cell.load(Ordering::Relaxed);
            cell.store(count.saturating_add(1), Ordering::Relaxed);
        }
        if value > max.load(Ordering::Relaxed) {
            max.store(value, Ordering::Relaxed);
        }
    }

    /// Ends the epoch, whose greatest value is `max`, and resets `max`. The caller must own the
    /// slot.
    pub(crate) fn end(&self, max: &AtomicU64) {
        self.max.store(max.load(Ordering::Relaxed), Ordering::Relaxed);
        max.store(0, Ordering::Relaxed);
    }

    /// Removes all values, for an epoch that begins.
    pub(crate) fn clear(&self) {
        for cell in &self.counts {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// The greatest value of an epoch that has ended.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Writes (bucket, count) pairs as varints for counts above zero; returns the number of bytes.
    pub(crate) fn encode(&self, buffer: &mut [u8]) -> usize {
        let mut length = 0;
        for (index, cell) in self.counts.iter().enumerate() {
            let count = cell.load(Ordering::Relaxed);
            if count > 0 {
                for value in [index as u64, u64::from(count)] {
                    length += put_varint(value, buffer.get_mut(length..).unwrap_or_default());
                }
            }
        }
        length
    }

    /// The most bytes that [`encode`](Self::encode) writes: one of the index and five of the count
    /// for each bucket.
    pub(crate) const ENCODED: usize = BUCKETS * 6;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Guards against two fields that share a cell: they would come back equal.
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
            counters: Counters::from_array(core::array::from_fn(|field| 20 + field as u64)),
            tick_cycles: 18,
            blocked_ns: 19,
            delivery_cycles: 14,
            deliveries_measured: 15,
            allocated_bytes: 16,
            freed_samples: 17,
        };
        let cells = SnapshotCells::default();
        cells.store(&snapshot);
        assert_eq!(cells.load(), snapshot);
        assert_eq!(cells.blocked_ns(), (19, 6));
        snapshot.runstate = None;
        cells.store(&snapshot);
        assert_eq!(cells.load(), snapshot);
    }

    /// Guards a crash dump, or another reader during a tick, against sums that do not add up: they
    /// do after every single addition, in any order.
    #[test]
    fn the_sums_hold_after_every_addition() {
        let cells = CounterCells::default();
        let outcomes = [
            Counter::Lost,
            Counter::ByBytes,
            Counter::Idle,
            Counter::ByTable,
            Counter::Masked,
            Counter::ByFramePointer,
            Counter::Overflow,
        ];
        for (before, counter) in outcomes.into_iter().enumerate() {
            assert_eq!(cells.read().ticks, before as u64);
            assert!(cells.read().add_up());
            cells.add_owned(counter, 1);
        }
        assert!(cells.read().add_up());
        assert_eq!((cells.read().ticks, cells.read().recorded), (7, 3));
    }

    #[test]
    fn a_histogram_fits_its_encoding() {
        let cells = HistogramCells::default();
        let max = AtomicU64::new(0);
        for cell in &cells.counts {
            cell.store(u32::MAX, Ordering::Relaxed);
        }
        cells.add(1000, &max);
        let mut buffer = [0; HistogramCells::ENCODED];
        assert_eq!(cells.encode(&mut buffer), HistogramCells::ENCODED);
        cells.clear();
        assert_eq!(cells.encode(&mut buffer), 0);
        cells.add(3, &max);
        cells.end(&max);
        assert_eq!((cells.max(), cells.encode(&mut buffer)), (1000, 2));
        cells.end(&max);
        assert_eq!(cells.max(), 0);
    }
}
