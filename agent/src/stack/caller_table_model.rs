//! Model of the caller table under loom: every interleaving of a tick that looks rules up with a
//! poll that writes and publishes a part.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib caller_table_model`

extern crate std;

use std::boxed::Box;

use loom::thread;
use unikprof_proto::caller_table::{Row, Rule};

use crate::ground::sync::{AtomicU32, AtomicU64};
use crate::stack::caller_table::CallerTable;

/// The first codes of the part published at the start and of the one that is added, and the end of
/// both.
const OLD: u32 = 16;
const NEW: u32 = 32;
const END: u32 = 64;

const fn row(code: u32, rule: Rule) -> Row {
    Row { code, rule }
}

/// A table with room for four rows, whose first part is published.
fn table() -> &'static CallerTable<'static> {
    let rows = (0..4).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
    let index = (0..8).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>();
    let table = CallerTable::new(Box::leak(rows), Box::leak(index), END);
    publish(&table, OLD, &[row(OLD, Rule::FRAME_RECORD)]);
    Box::leak(Box::new(table))
}

/// Writes and publishes a part of 16 codes as an upload does, each row in a separate poll.
fn publish(table: &CallerTable<'_>, first: u32, rows: &[Row]) {
    let writing = table.begin(first, first + 16, rows.len() as u32);
    let mut progress = writing.expect("there is room").pause();
    for row in rows {
        let mut writing = table.go_on(progress).expect("a part was begun");
        assert!(writing.push(*row));
        progress = writing.pause();
    }
    table.go_on(progress).expect("a part was begun").finish();
}

/// Asserts that a tick finds the first part unchanged, and all or nothing of the other.
fn look(table: &CallerTable<'_>) {
    assert_eq!(table.rule(OLD + 3), Rule::FRAME_RECORD);
    for (code, rule) in [(NEW + 1, Rule::ENTRY), (NEW + 9, Rule::OUTERMOST)] {
        if let Some(part) = table.find(code) {
            assert_eq!(part.rule(code), Some(rule), "code {code}");
        }
    }
}

const ROWS: [Row; 2] = [row(NEW, Rule::ENTRY), row(NEW + 8, Rule::OUTERMOST)];

fn model(poll: fn(&CallerTable<'_>)) {
    loom::model(move || {
        let table = table();
        // The order matters: loom explores a load against an earlier store of another thread, but
        // not a store against an earlier load, if the storing thread has loaded the same cell in
        // between.
        let ticking = thread::spawn(move || look(table));
        poll(table);
        ticking.join().expect("no panic");
        assert!(table.find(NEW).is_some() && table.find(NEW + 15).is_some());
        look(table);
    });
}

#[test]
fn a_tick_finds_a_new_part_whole_or_not_at_all() {
    model(|table| publish(table, NEW, &ROWS));
}

/// The next upload overwrites the rows of one that was abandoned.
#[test]
fn a_tick_finds_nothing_of_a_part_that_was_given_up() {
    model(|table| {
        let given_up = [NEW, NEW + 1].map(|code| row(code, Rule::FRAME_RECORD));
        let mut writing = table.begin(NEW, NEW + 16, 3).expect("there is room");
        assert!(given_up.iter().all(|row| writing.push(*row)));
        publish(table, NEW, &ROWS);
    });
}
