//! The ring under loom: every interleaving of readers with a writer that another interrupts, and of names
//! that are added at once.
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

/// As few records as show every order: those of a whole lap fit into one interruption.
const RECORDS: usize = 2;

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
        // The ring's own first record, the time, is out of the way.
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

/// Reads places as a reader does; few enough for all interleavings.
fn look(ring: &Ring<'_>, positions: Range<u64>) {
    for position in positions {
        if let Some((entry, time)) = ring.whole(position) {
            assert_eq!(entry, mark(time), "no record is mixed of two");
        }
    }
}

/// All that a reader tells.
fn read(ring: &Ring<'_>) -> Vec<u64> {
    let mut reader = Reader::new(ring, 0, 0).hasty();
    let mut told = Vec::new();
    let mut buffer = [0; 128];
    while let Some(run) = reader.run(ring, &mut buffer) {
        decode(run.base_ns, run.count, &buffer[..run.bytes], |record| {
            if record.kind == kind::MARK {
                assert_eq!(record.at_ns, record.second, "no record is mixed of two");
                told.push(record.second);
            }
        })
        .expect("a run is whole");
    }
    told
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.check(test);
}

/// A reader on another vCPU while the ring wraps under it.
#[test]
fn a_reader_beside_a_writer_tells_whole_records() {
    model(|| {
        let memory = Arc::new(Memory::new());
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                memory.push(2);
                memory.push(3);
            }
        });
        // Those there were, and one that comes.
        look(&memory.ring(), 1..3);
        assert!(writer.join().is_ok());
        assert_eq!(read(&memory.ring()), [2, 3]);
    });
}

/// An upcall comes at any point of the writing of a record and fills the ring meanwhile, with a reader beside:
/// the older record never takes the place of a newer one, and what was given up is counted.
#[test]
fn an_interrupted_writer_and_a_reader_mix_nothing_up() {
    for step in [Step::Reserved, Step::Looked, Step::Claimed, Step::Numbered] {
        model(move || {
            let memory = Arc::new(Memory::new());
            let writer = thread::spawn({
                let memory = memory.clone();
                move || {
                    let came = Cell::new(false);
                    memory.ring().push_interrupted(2, mark(2), |at| {
                        if at == step && !came.replace(true) {
                            memory.push(3);
                            memory.push(4);
                        }
                    });
                }
            });
            // Both that have the interrupted one's place.
            look(&memory.ring(), 4..5);
            look(&memory.ring(), 2..3);
            assert!(writer.join().is_ok());
            let told = read(&memory.ring());
            // The place of 2 is that of 4: one of them has it.
            let has_place = matches!(step, Step::Claimed | Step::Numbered);
            assert_eq!(told, if has_place { &[3][..] } else { &[3, 4] });
            assert_eq!(memory.ring().lost(), 1);
        });
    }
}

/// Two vCPUs that take one another for the same, as threads that move between them can: at worst a record is
/// given up.
#[test]
fn writers_side_by_side_mix_nothing_up() {
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
        let told = read(&memory.ring()).len() as u64;
        assert!(told + memory.ring().lost() >= RECORDS as u64);
    });
}

/// The same name and another that begins as it does are added at once: each is kept once, whole.
#[test]
fn names_that_are_added_at_once_are_kept_once() {
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
