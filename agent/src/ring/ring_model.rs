//! Loom models of the ring: every interleaving of readers with a writer that another writer
//! interrupts, and of names that are added concurrently.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib _model`

extern crate std;

use core::ops::Range;
use std::cell::Cell;
use std::string::String;
use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;
use unikprof_proto::ring::{MAX_EVENT_NAME, decode, kind};

use crate::ground::sync::{AtomicU64, Ordering};
use crate::ring::{Entry, NameCells, Names, Reader, RecordCells, Ring, RingCells, Step};

/// The smallest ring that shows every order: one interruption fills a whole lap.
const RECORDS: usize = 2;

/// Uses a stack's place as its number.
fn same(_: u64, place: u32) -> u64 {
    place.into()
}

struct Memory {
    cells: RingCells,
    records: Vec<RecordCells>,
}

impl Memory {
    fn new() -> Self {
        let memory = Self {
            cells: RingCells::default(),
            records: (0..RECORDS).map(|_| RecordCells::default()).collect(),
        };
        // The first record, the ring's full time, is written here, so that the tests need not count
        // it.
        memory.push(1);
        memory
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.cells, &self.records).expect("two records")
    }

    fn push(&self, number: u64) {
        self.ring().push(number, mark(number));
    }
}

fn mark(number: u64) -> Entry {
    Entry::named(kind::MARK, 0, number)
}

/// Reads places as a reader does, in few enough steps for loom to explore.
fn look(ring: &Ring<'_>, positions: Range<u64>) {
    for position in positions {
        if let Some((entry, time)) = ring.whole(position) {
            assert_eq!(entry, mark(time), "no record mixes two writers' data");
        }
    }
}

/// The numbers of all records that a reader returns.
fn read(ring: &Ring<'_>) -> Vec<u64> {
    let mut reader = Reader::new(ring, 0, 0).no_wait();
    let mut found = Vec::new();
    let mut buffer = [0; 128];
    while let Some(run) = reader.run(ring, same, &mut buffer) {
        decode(run.base_ns, run.count, &buffer[..run.bytes], |record| {
            if record.kind == kind::MARK {
                assert_eq!(record.at_ns, record.second, "no record mixes two writers' data");
                found.push(record.second);
            }
        })
        .expect("a run is whole");
    }
    found
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.check(test);
}

/// A reader on another vCPU while the ring wraps around.
#[test]
fn a_concurrent_reader_finds_complete_records() {
    model(|| {
        let memory = Arc::new(Memory::new());
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.push(2);
                memory.push(3);
            }
        });
        // The records written before and the one being written.
        look(&memory.ring(), 1..3);
        assert!(writer.join().is_ok());
        assert_eq!(read(&memory.ring()), [2, 3]);
    });
}

/// An upcall interrupts the writing of a record at each point and fills the ring, with a concurrent
/// reader: the older record never overwrites a newer one, and lost records are counted.
#[test]
fn an_interrupted_writer_and_a_reader_mix_nothing_up() {
    for step in [Step::Reserved, Step::Looked, Step::Claimed, Step::Numbered] {
        model(move || {
            let memory = Arc::new(Memory::new());
            let writer = thread::spawn({
                let memory = memory.clone();
                move || {
                    let has_interrupted = Cell::new(false);
                    memory.ring().push_interrupted(2, mark(2), |at| {
                        if at == step && !has_interrupted.replace(true) {
                            memory.push(3);
                            memory.push(4);
                        }
                    });
                }
            });
            // Both positions that share the interrupted record's place.
            look(&memory.ring(), 4..5);
            look(&memory.ring(), 2..3);
            assert!(writer.join().is_ok());
            let found = read(&memory.ring());
            // Records 2 and 4 have the same place: one of them is lost.
            let has_place = matches!(step, Step::Claimed | Step::Numbered);
            assert_eq!(found, if has_place { &[3][..] } else { &[3, 4] });
            assert_eq!(memory.ring().lost(), 1);
        });
    }
}

/// Two writers that run concurrently on one ring, as hosted threads that move between vCPUs can: at
/// worst a record is lost.
#[test]
fn concurrent_writers_mix_nothing_up() {
    model(|| {
        let memory = Arc::new(Memory::new());
        let writer = thread::spawn({
            let memory = memory.clone();
            move || memory.push(2)
        });
        // Times of two vCPUs need not be in order.
        memory.push(2);
        memory.push(2);
        assert!(writer.join().is_ok());
        let found = read(&memory.ring()).len() as u64;
        assert!(found + memory.ring().lost() >= RECORDS as u64);
    });
}

/// The same name, and another with the same beginning, are added concurrently: each is stored once,
/// complete.
#[test]
fn names_added_concurrently_are_stored_once() {
    model(|| {
        let cells: Arc<Vec<NameCells>> = Arc::new((0..2).map(|_| NameCells::default()).collect());
        let refused = Arc::new(AtomicU64::new(0));
        let add = |cells: &[NameCells], refused: &AtomicU64, name: &str| {
            Names::new(cells, refused).intern(name)
        };
        let adder = thread::spawn({
            let (cells, refused) = (cells.clone(), refused.clone());
            move || {
                let first = add(&cells, &refused, "requests-a");
                (first, add(&cells, &refused, "requests-b"))
            }
        });
        let other = add(&cells, &refused, "requests-b");
        let (first, second) = adder.join().expect("it does not panic");
        assert_eq!(other, second, "the same name has the same id");
        assert_ne!(first, second);
        let names = Names::new(&cells, &refused);
        for (id, name) in [(first, "requests-a"), (second, "requests-b")] {
            let mut buffer = [0; MAX_EVENT_NAME];
            let found = id.ok().and_then(|id| names.get(id, &mut buffer));
            assert_eq!(found.map(String::from).as_deref(), Some(name));
        }
        assert_eq!(refused.load(Ordering::Relaxed), 0);
    });
}
