//! Model of the segments under loom: interleavings of a vCPU's ticks with the poll that gives up
//! its oldest stacks, and with a reader that does not own the slot.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib rotation_model`

extern crate std;

use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;
use unikprof_proto::message::Snapshot;
use unikprof_proto::nodes;

use crate::count::live::{Held, LiveEntry, LiveTable};
use crate::count::recording::{Begin, Lookup, RecordingCells, Sample};
use crate::count::slot::{Slot, SlotCells};
use crate::count::table::{Column, Node, SEGMENTS, Table};
use crate::ground::sync::AtomicU32;
use crate::stack::path::PathCells;
use crate::stack::walk::{End, Walked, Way};

/// A vCPU whose segments have one node each.
struct Memory {
    cells: SlotCells,
    recordings: Vec<RecordingCells>,
    nodes: Vec<Node>,
    index: Vec<AtomicU32>,
}

const OLD: u32 = 100;
const SAMPLE: Sample =
    Sample { walked: Walked { end: End::Root, way: Way::FramePointer, mixed: false }, late: false };

impl Memory {
    /// All segments except `free` of them contain a stack: the codes from [`OLD`] on, each sampled
    /// once.
    fn filled(free: u32) -> Self {
        let memory = Self {
            cells: SlotCells::default(),
            recordings: (0..1).map(|_| RecordingCells::default()).collect(),
            nodes: (0..SEGMENTS).map(|_| Node::default()).collect(),
            index: (0..2 * SEGMENTS).map(|_| AtomicU32::new(0)).collect(),
        };
        let begin = Begin {
            recording: 1,
            epoch: 1,
            mode: 0,
            lookup: Lookup::None,
            depth: 8,
            period_ns: 1,
            fixed: true,
            until_ns: u64::MAX,
            seed: 1,
        };
        memory.slot().begin(0, &begin, &Snapshot::default());
        for code in 0..SEGMENTS as u32 - free {
            assert!(memory.sample(OLD + code).is_some());
        }
        memory
    }

    fn slot(&self) -> Slot<'_> {
        Slot {
            cells: &self.cells,
            recordings: &self.recordings,
            table: Table::new(&self.nodes, &self.index, &[], self.cells.table()),
        }
    }

    /// Counts a sample as a tick does; `None` if the slot is busy or the table is full.
    fn sample(&self, code: u32) -> Option<u32> {
        let slot = self.slot();
        let live = slot.live();
        let owned = slot.take()?;
        let served = owned.served(live)?;
        let mut path = owned.path_cells().begin();
        path.push(code);
        let recorded = owned.record(&path, SAMPLE, served);
        (recorded.overflow == 0).then_some(recorded.place)
    }

    /// Gives up the oldest segment in the steps of the poll, each of which takes the slot; returns
    /// the number of samples counted as aged.
    fn rotate(&self) -> u64 {
        let slot = self.slot();
        let own = || loop {
            if let Some(owned) = slot.take() {
                break owned;
            }
            thread::yield_now();
        };
        let (aged, _owned) = self.give_up_oldest(own);
        slot.table.free(0);
        aged
    }

    /// All these steps except freeing the segment. `own` takes the slot; returns the number of aged
    /// samples and the slot.
    fn give_up_oldest<O>(&self, own: impl Fn() -> O) -> (u64, O) {
        let Slot { table, .. } = self.slot();
        let recording = &self.recordings[0];
        let segment = table.oldest_segment(0).unwrap_or(0);
        let owned = own();
        table.condemn(segment, 0);
        drop(owned);
        let owned = own();
        table.sweep(u32::MAX);
        drop(owned);
        let owned = own();
        let (taken, _) = table.take_counts(Column::of(0, 1), segment, 0, u32::MAX);
        recording.age(1, taken.ran, 0);
        recording.segments.clear(1, 1 << segment);
        (taken.ran, owned)
    }
}

/// A run has many operations of which few race, so the number of preemptions is limited.
fn model(interruptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.preemption_bound = Some(interruptions);
    model.check(run);
}

/// No sample is counted twice or lost if a tick races with the rotation, whether its stack is in
/// the segment that is given up or new.
#[test]
fn a_tick_beside_a_rotation_is_counted_once() {
    for code in [OLD, OLD + 1, 999] {
        model(2, move || {
            let memory = Arc::new(Memory::filled(1));
            let rotating = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || memory.rotate())
            };
            let counted = u64::from(memory.sample(code).is_some());
            let aged = rotating.join().expect("no panic");
            let counters = memory.recordings[0].counters.read();
            let sum = SEGMENTS as u64 - 1 + counted;
            assert_eq!((counters.recorded + counters.aged, counters.aged), (sum, aged));
            let mut left = 0;
            for segment in 0..SEGMENTS as u32 {
                let (taken, _) =
                    memory.slot().table.take_counts(Column::of(0, 1), segment, 0, u32::MAX);
                left += taken.ran;
            }
            assert_eq!(left, counters.recorded);
            // A condemned stack is found again, in another segment.
            assert!(memory.sample(OLD).is_some());
        });
    }
}

/// A guest takes a live sample and puts it back, as a realloc that fails does, while the poll gives
/// up the segment of its stack, which another stack uses again: a sample that stays has its own
/// stack.
#[test]
fn a_sample_that_is_put_back_has_its_stack() {
    model(1, || {
        let memory = Arc::new(Memory::filled(1));
        let live = LiveTable::for_model();
        assert!(live.insert(&LiveEntry {
            address: 16,
            size: 8,
            born_ns: 1,
            held: Held::new(1, 0, 1),
        }));
        let guest = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let table = memory.slot().table;
                let mut stack = 0;
                let taken = live.free(16, &mut |entry| {
                    stack = entry.stack(&table);
                    entry.held.only(0)
                });
                let taken = taken.expect("only this thread removes it");
                live.put_back(&taken, || stack != 0 && taken.stack(&table) == stack);
            })
        };
        let slot = memory.slot();
        let table = slot.table;
        let own = || slot.take().expect("only this thread takes it");
        let owned = own();
        table.condemn(0, live.buckets());
        drop(owned);
        let owned = own();
        live.revise(0, 0, &mut |entry| {
            let path = owned.path_cells().begin();
            let place = table.move_stack(entry.held.place(), path);
            entry.held.at(place.expect("a segment is free"))
        });
        drop(owned);
        let owned = own();
        table.sweep(u32::MAX);
        table.free(0);
        let mut path = owned.path_cells().begin();
        path.push(999);
        let other = table.keep(&path).expect("a segment is free");
        drop(owned);
        guest.join().expect("no panic");
        for entry in live.each(0) {
            assert_ne!(entry.held.place(), other, "{entry:?}");
        }
    });
}

/// A crash dump reads the stacks of a vCPU that is still running: a number never comes with another
/// stack's frames.
///
/// The reader is the spawned thread, because loom lets the first thread see all stores of the
/// others too early. Only the steps that race run in parallel, so that the model terminates.
#[test]
fn a_reader_that_owns_nothing_never_mixes_stacks() {
    model(1, || {
        let memory = Arc::new(Memory::filled(0));
        memory.give_up_oldest(|| ());
        let reading = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || read_all(&memory.slot().table))
        };
        let table = memory.slot().table;
        table.free(0);
        let path_cells = PathCells::default();
        let mut path = path_cells.begin();
        path.push(999);
        table.keep(&path).expect("a segment is free");
        reading.join().expect("no panic");
    });
}

/// Reads the nodes from the oldest number on. Their segment may be begun again meanwhile.
fn read_all(table: &Table<'_>) {
    let mut buffer = [0; 100];
    let Some(run) = table.encode(0, 1, &mut buffer) else {
        return;
    };
    let payload = &buffer[..run.bytes];
    nodes::decode(run.first, run.count, payload, |number, node| {
        let expected = match number {
            number if number <= SEGMENTS as u64 => OLD + number as u32 - 1,
            _ => 999,
        };
        assert_eq!(node.frames, [expected], "{number}");
    })
    .expect("a whole run");
}
