//! Model of the slot under loom: interleavings of a vCPU that runs [`Agent::on_tick`] and
//! [`Agent::on_wake`] with a thread that flips, reads and clears.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib slot_model`
#![allow(unsafe_code)]

extern crate std;

use core::ops::Range;
use core::sync::atomic::AtomicU64 as PlainU64;
use std::boxed::Box;
use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;
use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::message::Snapshot;
use unikprof_proto::{counts, nodes};

use crate::agent::{Agent, Config};
use crate::count::recording::{Begin, Lookup, RecordingCells};
use crate::count::slot::{Owned, Slot, SlotCells};
use crate::count::table::{Column, Counts, Node, SEGMENTS, Table};
use crate::count::vcpu_snapshot::MOST_BYTES;
use crate::ground::platform::{Platform, Registers, Runstate};
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::stack::code_map::{CodeMap, Mapping};

const RECORDINGS: usize = 2;
const NODES: usize = SEGMENTS;
const FIRST: u32 = frame_code::FIRST_ADDRESS;

const MAPPINGS: &[Mapping<'static>] =
    &[Mapping { start: 0x1000, end: 0x2000, file_offset: 0, build_id: &[], path: "" }];

/// A platform with one vCPU. Its clocks are not modelled: they advance with each read of the
/// running time, so that every tick is due.
#[derive(Debug, Default)]
struct ModelPlatform {
    running_ns: PlainU64,
    blocked_ns: PlainU64,
}

// SAFETY: every stack is empty, and no code is named.
unsafe impl Platform for ModelPlatform {
    fn now_ns(&self) -> u64 {
        self.running_ns.load(Ordering::Relaxed)
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        None
    }

    fn vcpu(&self) -> Option<u32> {
        Some(0)
    }

    fn running_ns(&self, _: u32) -> u64 {
        self.running_ns.fetch_add(10, Ordering::Relaxed) + 10
    }

    fn blocked_ns(&self, _: u32) -> u64 {
        self.blocked_ns.load(Ordering::Relaxed)
    }

    fn runstate(&self, _: u32) -> Option<Runstate> {
        None
    }

    fn kick(&self, _: u32) {}

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        Some(sp..sp)
    }

    fn random(&self) -> Option<u64> {
        None
    }
}

/// The cells that [`Memory`]'s slot refers to.
struct Cells {
    slot: SlotCells,
    recordings: Vec<RecordingCells>,
    nodes: Vec<Node>,
    index: Vec<AtomicU32>,
    more_counts: Vec<Counts>,
}

/// An agent with one vCPU, and its memory.
struct Memory {
    agent: Agent<'static, ModelPlatform>,
    slot: *mut Slot<'static>,
    cells: *mut Cells,
}

// SAFETY: the pointers are used to free what they point to alone.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw` in `new`. The agent refers to both, but does nothing when it
        // is dropped.
        drop(unsafe { (Box::from_raw(self.slot), Box::from_raw(self.cells)) });
    }
}

impl Memory {
    fn new() -> Self {
        let cells = Box::into_raw(Box::new(Cells {
            slot: SlotCells::default(),
            recordings: (0..RECORDINGS).map(|_| RecordingCells::default()).collect(),
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            index: (0..2 * NODES).map(|_| AtomicU32::new(0)).collect(),
            more_counts: (0..NODES * (RECORDINGS - 1))
                .map(|_| core::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
        }));
        // SAFETY: freed when the agent that has it is dropped, and never borrowed mutably.
        let borrowed: &'static Cells = unsafe { &*cells };
        let Cells { slot, recordings, nodes, index, more_counts } = borrowed;
        let slot = Box::into_raw(Box::new(Slot {
            cells: slot,
            recordings,
            table: Table::new(nodes, index, more_counts, slot.table()),
        }));
        // SAFETY: as above.
        let slots = core::slice::from_ref(unsafe { &*slot });
        let code = CodeMap::new(MAPPINGS).expect("one mapping");
        let config = Config {
            vcpus: 1,
            recordings: RECORDINGS as u32,
            mappings: MAPPINGS,
            guest_name: None,
            guest_id: None,
            platform_name: "model",
            reachable_when_busy: false,
        };
        Self {
            agent: Agent::with_slots(ModelPlatform::default(), config, code, slots),
            slot,
            cells,
        }
    }

    fn slot(&self) -> &Slot<'static> {
        self.agent.slot(0).expect("one vCPU")
    }

    /// A tick that interrupts the code with this frame code, on a stack of one frame.
    fn tick(&self, code: u32) {
        self.agent.on_tick(Some(&Self::registers(code)));
    }

    fn registers(code: u32) -> Registers {
        Registers::new(0x1000 + u64::from(code - FIRST), 8, 0)
    }

    fn begin(&self, recording: u64, epoch: u64) {
        for column in [epoch, epoch + 1] {
            clear(self.slot(), 0, column);
        }
        self.begin_mode(0, recording, epoch, mode::CPU);
    }

    fn begin_mode(&self, index: usize, recording: u64, epoch: u64, mode: u32) {
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
        self.slot().begin(index, &begin, &Snapshot::default());
    }
}

/// Checks every interleaving with at most one preemption, a switch away from a thread that does not
/// wait: a whole tick has too many steps for more. `LOOM_MAX_PREEMPTIONS` allows more. Clearing a
/// slot takes more branches than loom's default limit.
fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound.get_or_insert(1);
    builder.check(test);
}

/// Reads an epoch that has ended as a download does; returns the sum of its counts.
fn download(slot: &Slot<'_>, recording: usize, epoch: u64) -> u64 {
    let mut buffer = [0; 512];
    if let Some(run) = slot.table.encode(0, u64::MAX, &mut buffer) {
        nodes::decode(run.first, run.count, &buffer[..run.bytes], |_, node| {
            assert!(node.frames == [FIRST] || node.frames == [FIRST + 1], "a node is seen whole");
        })
        .expect("a node is seen whole");
    }
    let mut sum = 0;
    let segments = slot.recordings[recording].segments.of(epoch);
    let column = Column::of(recording, epoch);
    let all = (0, u64::MAX);
    if let Some(run) = slot.table.encode_counts(column, segments, all, u32::MAX, &mut buffer) {
        counts::decode(0, run.count, &buffer[..run.bytes], |_, count| sum += count)
            .expect("counts are seen whole");
    }
    sum
}

/// Clears the counts of an epoch as the recorder does after a client has fetched them.
fn clear(slot: &Slot<'_>, recording: usize, epoch: u64) {
    let segments = slot.recordings[recording].segments.of(epoch);
    for segment in 0..SEGMENTS as u32 {
        slot.table.take_counts(Column::of(recording, epoch), segment, 0, u32::MAX);
    }
    let owned = take(slot);
    slot.recordings[recording].segments.clear(epoch, segments);
    drop(owned);
}

fn flip(slot: &Slot<'_>, recording: usize, next: u64, last: bool) {
    flip_at(slot, recording, next, last, 0);
}

fn flip_at(slot: &Slot<'_>, recording: usize, next: u64, last: bool, blocked_ns: u64) {
    let now = Snapshot { blocked_ns, ..Snapshot::default() };
    take(slot).flip(recording, next, last, now, None);
}

fn take<'m>(slot: &'m Slot<'_>) -> Owned<'m> {
    loop {
        if let Some(owned) = slot.take() {
            return owned;
        }
        thread::yield_now();
    }
}

/// A dump during ticks: the download equals the counters, a second download equals the first, and
/// no sample is counted twice or in neither epoch.
#[test]
fn a_flip_divides_the_ticks_between_two_epochs() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.tick(FIRST);
                memory.tick(FIRST + 1);
            }
        });
        let slot = memory.slot();
        flip(slot, 0, 2, false);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.recordings[0].boundary(2).counters.recorded);
        assert_eq!(first, download(slot, 0, 1), "a broken download can be repeated");
        clear(slot, 0, 1);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 3, true);
        let second = download(slot, 0, 2);
        let counters = slot.recordings[0].boundary(3).counters;
        assert!(counters.add_up());
        assert_eq!(counters.ticks, 2);
        assert_eq!(first + second, counters.recorded);
    });
}

/// A second recording begins and ends during the ticks of the first: each counts the ticks that
/// were due to it, and the end of the second does not affect the first.
#[test]
fn recordings_come_and_go_beside_each_other() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.tick(FIRST);
                memory.tick(FIRST + 1);
            }
        });
        memory.begin_mode(1, 2, 1, mode::CPU);
        let slot = memory.slot();
        flip(slot, 1, 2, true);
        let second = download(slot, 1, 1);
        assert_eq!(second, slot.recordings[1].boundary(2).counters.recorded);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 2, true);
        let counters = slot.recordings[0].boundary(2).counters;
        assert_eq!(download(slot, 0, 1), counters.recorded);
        assert!(counters.ticks == 2 && counters.add_up());
        assert_eq!(download(slot, 1, 1), second, "nothing came after the end");
    });
}

/// A recording ends and the next begins during a tick: the tick belongs to one of them or to none,
/// and never finds a table half cleared or restores a cleared count.
#[test]
fn a_tick_under_way_does_not_cross_into_the_next_recording() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        memory.tick(FIRST);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || memory.tick(FIRST + 1)
        });
        let slot = memory.slot();
        flip(slot, 0, 2, true);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.recordings[0].boundary(2).counters.recorded);
        memory.begin(2, 3);
        assert!(ticker.join().is_ok());
        flip(slot, 0, 4, true);
        let second = download(slot, 0, 3);
        assert!((1..=2).contains(&(first + second)));
        assert_eq!(second, slot.recordings[0].boundary(4).counters.recorded);
        assert!(slot.recordings[0].boundary(4).counters.add_up());
    });
}

/// A tick finds that a recording's time is over while the recorder ends it and begins the next at
/// its index: the tick does not end the next one.
#[test]
fn a_tick_that_finds_the_time_over_ends_nothing_that_came_after() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        memory.slot().recordings[0].end_at(1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || memory.tick(FIRST)
        });
        flip(memory.slot(), 0, 2, true);
        let ended = memory.slot().recordings[0].boundary(2);
        // If the tick came first, both clocks are the tick's.
        assert_eq!(ended.at_ns == 0, ended.running_ns == 0);
        memory.begin(2, 3);
        assert!(ticker.join().is_ok());
        assert_eq!(active(&memory), 2);
        assert!(!memory.slot().live().is_empty());
        flip(memory.slot(), 0, 4, true);
        assert_eq!(memory.slot().recordings[0].boundary(4).at_ns, 0, "it did not end before");
    });
}

fn active(memory: &Memory) -> u64 {
    memory.slot().recordings[0].active()
}

/// A vCPU wakes during a dump and the end of the recording: each nanosecond of blocked time is in
/// exactly one epoch, and none after the end is counted.
#[test]
fn a_wait_is_divided_between_epochs_and_counted_once() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin_mode(0, 1, 1, mode::OFF_CPU);
        let slot = memory.slot();
        memory.agent.on_block(Some(&Memory::registers(FIRST)));
        let platform = memory.agent.platform();
        platform.blocked_ns.store(10, Ordering::Relaxed);
        let waker = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.agent.on_wake();
            }
        });
        flip_at(slot, 0, 2, false, 4);
        let first = download(slot, 0, 1);
        assert_eq!(first, slot.recordings[0].boundary(2).counters.blocked);
        flip_at(slot, 0, 3, true, 7);
        assert!(waker.join().is_ok());
        let second = download(slot, 0, 2);
        let counted = slot.recordings[0].boundary(3).counters;
        assert_eq!(first + second, counted.blocked);
        assert!([7, 10].contains(&counted.blocked), "up to the end, or to the waking");
        assert_eq!(counted.blocks, 1);
    });
}

/// A vCPU finds its slot busy when it blocks, because a dump flips it, and opens the block without
/// it: a dump that finds the block open counts it from its beginning, not from the end of the block
/// before.
#[test]
fn a_block_that_opens_beside_a_flip_is_counted_from_its_beginning() {
    model(|| {
        let memory: &'static Memory = Box::leak(Box::new(Memory::new()));
        memory.begin_mode(0, 1, 1, mode::OFF_CPU);
        let platform = memory.agent.platform();
        platform.blocked_ns.store(10, Ordering::Relaxed);
        // Taken before and begun last: loom does not explore a store against an earlier load of
        // another thread if the storing thread has loaded the same cell before.
        let owned = take(memory.slot());
        let vcpu = thread::spawn(|| memory.agent.on_block(Some(&Memory::registers(FIRST))));
        let dump = thread::spawn(move || {
            let now = Snapshot { blocked_ns: 10, ..Snapshot::default() };
            owned.flip(0, 2, false, now, None);
        });
        assert!(vcpu.join().is_ok() && dump.join().is_ok());
        let counters = memory.slot().recordings[0].boundary(2).counters;
        assert_eq!((counters.blocked, counters.blocked_overflow), (0, 0));
    });
}

/// A vCPU crashes while the recorder starts an epoch on another one: the crash dump names an epoch
/// with the clocks of its start.
#[test]
fn a_crash_finds_the_start_of_the_epoch_that_it_names() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let crash = thread::spawn({
            let memory = memory.clone();
            move || {
                let (epoch, start) = memory.slot().recordings[0].current();
                assert_eq!(start.at_ns, epoch - 1, "the start of epoch {epoch}");
            }
        });
        let now = Snapshot { at_ns: 1, ..Snapshot::default() };
        take(memory.slot()).flip(0, 2, false, now, None);
        assert!(crash.join().is_ok());
    });
}

/// Guards a reader during a tick, or a crash inside one, against counters that do not add up.
#[test]
fn the_account_adds_up_within_a_tick() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || memory.tick(FIRST)
        });
        let counters = &memory.slot().recordings[0].counters;
        assert!(counters.read().add_up());
        assert!(ticker.join().is_ok());
        assert_eq!(counters.read().ticks, 1);
    });
}

/// A client reads a snapshot while ticks take it and count their own samples: it finds no snapshot
/// or a whole one, and the recording counts every tick.
#[test]
fn a_snapshot_is_read_whole() {
    model(|| {
        let memory = Arc::new(Memory::new());
        memory.begin(1, 1);
        let cells = memory.slot().cells;
        cells.request_snapshot();
        let ticker = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.tick(FIRST);
                memory.tick(FIRST + 1);
            }
        });
        let first = snapshot(memory.slot());
        if first.is_some() {
            cells.request_snapshot();
        }
        let second = snapshot(memory.slot());
        assert!(ticker.join().is_ok());
        assert_eq!(first.or(second).unwrap_or(FIRST), FIRST, "the first tick took it");
        let last = snapshot(memory.slot());
        assert!(last.is_some() || first.is_some(), "there was one");
        let counters = memory.slot().recordings[0].counters.read();
        assert!(counters.ticks == 2 && counters.add_up());
    });
}

/// The frame code of the last snapshot's leaf. Its registers must be those of the same tick.
fn snapshot(slot: &Slot<'_>) -> Option<u32> {
    let mut bytes = [0; MOST_BYTES];
    let length = slot.snapshot()?.encode(&mut bytes);
    let (values, _) = bytes[..length].as_chunks();
    let values: Vec<u64> = values.iter().map(|it| u64::from_le_bytes(*it)).collect();
    let [_, _, pc, _, _, _, code] = values[..] else {
        assert!(values.is_empty(), "seen whole: {values:?}");
        return None;
    };
    let code = code as u32;
    assert_eq!(Memory::registers(code).pc, pc, "seen whole");
    Some(code)
}
