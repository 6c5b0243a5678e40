//! The slot under loom: every interleaving of a ticking vCPU with whoever flips, reads and clears.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib slot_model`

extern crate std;

use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;
use unikprof_proto::code::mode;
use unikprof_proto::message::Snapshot;
use unikprof_proto::nodes;

use crate::count::lane::{Begin, LaneCells, Lookup, Sample, Times};
use crate::count::slot::{Owned, Slot, SlotCells};
use crate::count::table::{Column, Counts, Node, Table};
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::stack::walk::{End, Walked, Way};

/// How many recordings there can be.
const LANES: usize = 2;

struct Memory {
    cells: SlotCells,
    lanes: Vec<LaneCells>,
    nodes: Vec<Node>,
    index: Vec<AtomicU32>,
    more_counts: Vec<Counts>,
}

impl Memory {
    fn new() -> Self {
        Self {
            cells: SlotCells::default(),
            lanes: (0..LANES).map(|_| LaneCells::default()).collect(),
            nodes: (0..2).map(|_| Node::default()).collect(),
            index: (0..4).map(|_| AtomicU32::new(0)).collect(),
            more_counts: (0..2 * (LANES - 1))
                .map(|_| core::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
        }
    }

    fn slot(&self) -> Slot<'_> {
        Slot {
            cells: &self.cells,
            lanes: &self.lanes,
            table: Table::new(
                &self.nodes,
                &self.index,
                &self.more_counts,
                self.cells.used(),
            ),
        }
    }

    fn begin(&self, recording: u64, epoch: u64) {
        self.slot().table.clear();
        self.begin_mode(0, recording, epoch, mode::CPU);
    }

    fn begin_mode(&self, lane: usize, recording: u64, epoch: u64, mode: u32) {
        let begin = Begin {
            recording,
            epoch,
            mode,
            lookup: Lookup::None,
            depth: 8,
            period_ns: 1,
            fixed: true,
            until_ns: u64::MAX,
            seed: 1,
        };
        self.slot().begin(lane, &begin, &Snapshot::default());
    }
}

/// Every interleaving; a slot has more cells to clear than loom expects of a test.
fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.check(test);
}

/// What the tick does once it is due to all recordings.
fn tick(slot: Slot<'_>, code: u32) {
    let due = slot.live();
    let Some(owned) = slot.take() else {
        for (_, lane) in due.left(slot).lanes() {
            lane.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
        return;
    };
    let Some(served) = owned.served(due) else {
        return;
    };
    let mut path = owned.path_cells().begin();
    path.push(code);
    let walked = Walked {
        end: End::Root,
        way: Way::FramePointer,
        mixed: false,
    };
    let sample = Sample {
        walked,
        late: false,
    };
    owned.record(&path, sample, served);
}

/// Reads a waiting epoch as a download does: its nodes as they were at its end.
fn download(slot: Slot<'_>, lane: usize, epoch: u64) -> u64 {
    let last = slot.lanes[lane].boundary_nodes(epoch + 1);
    let mut buffer = [0; 512];
    let (count, length) = slot
        .table
        .encode(Some(Column::of(lane, epoch)), 1, last, &mut buffer);
    assert_eq!(count, last, "every node fits");
    let mut sum = 0;
    nodes::decode(1, count, &buffer[..length], |_, node| {
        assert!(
            node.frames == [16] || node.frames == [17],
            "a node is seen whole"
        );
        sum += node.count;
    })
    .expect("a node is seen whole");
    sum
}

fn flip(slot: Slot<'_>, lane: usize, next: u64, last: bool) {
    flip_at(slot, lane, next, last, 0);
}

fn flip_at(slot: Slot<'_>, lane: usize, next: u64, last: bool, blocked_ns: u64) {
    let now = Snapshot {
        blocked_ns,
        ..Snapshot::default()
    };
    take(slot).flip(lane, next, last, now);
}

fn take(slot: Slot<'_>) -> Owned<'_> {
    loop {
        if let Some(owned) = slot.take() {
            return owned;
        }
        thread::yield_now();
    }
}

/// A dump in the midst of ticks: what the download reads is what the counters say, the second
/// download reads the same, and nothing is counted twice or in neither epoch.
#[test]
fn a_flip_divides_the_ticks_between_two_epochs() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                tick(memory.slot(), 16);
                tick(memory.slot(), 17);
            }
        });
        let slot = memory.slot();
        flip(slot, 0, 2, false);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.lanes[0].boundary(2).counters.recorded);
        assert_eq!(
            first,
            download(slot, 0, 1),
            "a broken download can be repeated"
        );
        assert_eq!(slot.table.clear_column(Column::of(0, 1), 0, u32::MAX), None);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 3, true);
        let second = download(slot, 0, 2);
        let counters = slot.lanes[0].boundary(3).counters;
        assert!(counters.add_up());
        assert_eq!(counters.ticks, 2);
        assert_eq!(first + second, counters.recorded);
    });
}

/// A second recording begins and ends while the first is ticked: each counts what was due to it, and
/// the end of the one is nothing to the other.
#[test]
fn recordings_come_and_go_beside_each_other() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                tick(memory.slot(), 16);
                tick(memory.slot(), 17);
            }
        });
        memory.begin_mode(1, 2, 1, mode::CPU);
        let slot = memory.slot();
        flip(slot, 1, 2, true);
        let second = download(slot, 1, 1);
        assert_eq!(second, slot.lanes[1].boundary(2).counters.recorded);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 2, true);
        let counters = slot.lanes[0].boundary(2).counters;
        assert_eq!(download(slot, 0, 1), counters.recorded);
        assert!(counters.ticks == 2 && counters.add_up());
        assert_eq!(download(slot, 1, 1), second, "nothing came after the end");
    });
}

/// A recording ends and the next begins while a tick is under way: it belongs to one or to none, and
/// never finds a table half cleared, nor brings back what was in it.
#[test]
fn a_tick_under_way_does_not_cross_into_the_next_recording() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        tick(memory.slot(), 16);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || tick(memory.slot(), 17)
        });
        let slot = memory.slot();
        flip(slot, 0, 2, true);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.lanes[0].boundary(2).counters.recorded);
        memory.begin(2, 3);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 4, true);
        let second = download(slot, 0, 3);
        assert!((1..=2).contains(&(first + second)));
        assert_eq!(second, slot.lanes[0].boundary(4).counters.recorded);
        assert!(slot.lanes[0].boundary(4).counters.add_up());
    });
}

/// A recording's time is over, which a tick sees while the recorder ends it and begins the next in its lane: the
/// end of the one is nothing to the next.
#[test]
fn a_tick_that_finds_the_time_over_ends_nothing_that_came_after() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        memory.slot().lanes[0].end_at(1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                let times = Times {
                    running_ns: 5,
                    blocked_ns: 0,
                };
                memory.slot().expire(5, times);
            }
        });
        flip(memory.slot(), 0, 2, true);
        let ended = memory.slot().lanes[0].boundary(2);
        assert!([(0, 0), (5, 5)].contains(&(ended.at_ns, ended.running_ns)));
        memory.begin(2, 3);
        assert!(ticker.join().is_ok());
        assert_eq!(active(&memory), 2);
        assert!(!memory.slot().live().is_empty());
        flip(memory.slot(), 0, 4, true);
        assert_eq!(
            memory.slot().lanes[0].boundary(4).at_ns,
            0,
            "it did not end before"
        );
    });
}

fn active(memory: &Memory) -> u64 {
    memory.slot().lanes[0].active()
}

/// A vCPU wakes while a dump and the end of the recording are under way: each nanosecond that it was
/// blocked is in one epoch, and none that came after the end.
#[test]
fn a_wait_is_divided_between_epochs_and_counted_once() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin_mode(0, 1, 1, mode::OFF_CPU);
        let slot = memory.slot();
        {
            let owned = take(slot);
            let mut path = owned.path_cells().begin();
            path.push(16);
            let stack = slot.table.keep(&path).expect("it is empty");
            slot.cells.set_blocked(true);
            slot.lanes[0].open_block(stack, Times::default());
        }
        let waker = thread::spawn({
            let memory = memory.clone();
            move || {
                let slot = memory.slot();
                let times = Times {
                    running_ns: 0,
                    blocked_ns: 10,
                };
                if slot.lanes[0].has_block() {
                    take(slot).end_block(slot.live(), times);
                }
                slot.cells.set_blocked(false);
            }
        });
        flip_at(slot, 0, 2, false, 4);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.lanes[0].boundary(2).counters.blocked);
        flip_at(slot, 0, 3, true, 7);
        assert!(waker.join().is_ok());
        let second = download(slot, 0, 2);
        let counted = slot.lanes[0].boundary(3).counters;
        assert_eq!(first + second, counted.blocked);
        assert!(
            [7, 10].contains(&counted.blocked),
            "up to the end, or to the waking"
        );
        assert_eq!(counted.blocks, 1);
    });
}
