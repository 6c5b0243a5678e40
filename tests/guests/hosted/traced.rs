//! A load with a known tree of calls, each counted by the load itself and timed with the clock of
//! its thread. It begins when anything arrives on standard input, and prints `done` with what it
//! counted.

use std::cell::Cell;
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

/// The number of runs of the tree.
const ROUNDS: u64 = 200;

/// The interval at which a wait looks for the guest's end.
const SLICE: Duration = Duration::from_millis(20);

thread_local! {
    static COUNTS: Counts = const { Counts::new() };
}

/// The functions' own counts.
struct Counts {
    outer: Cell<u64>,
    outer_ns: Cell<u64>,
    inner: Cell<u64>,
    recursive: Cell<u64>,
    waits: Cell<u64>,
    waits_ns: Cell<u64>,
    unwinds: Cell<u64>,
}

impl Counts {
    const fn new() -> Counts {
        Counts {
            outer: Cell::new(0),
            outer_ns: Cell::new(0),
            inner: Cell::new(0),
            recursive: Cell::new(0),
            waits: Cell::new(0),
            waits_ns: Cell::new(0),
            unwinds: Cell::new(0),
        }
    }
}

static SINK: AtomicU64 = AtomicU64::new(0);

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    // Panics are part of the load.
    std::panic::set_hook(Box::new(|_| ()));
    while !stop.was_told() && !stop.is_set() {
        thread::sleep(SLICE);
    }
    for round in 0..ROUNDS {
        outer(round);
    }
    COUNTS.with(|counts| {
        println!(
            "done outer {} outer_ns {} inner {} recursive {} waits {} waits_ns {} unwinds {}",
            counts.outer.get(),
            counts.outer_ns.get(),
            counts.inner.get(),
            counts.recursive.get(),
            counts.waits.get(),
            counts.waits_ns.get(),
            counts.unwinds.get(),
        );
    });
    while !stop.is_set() {
        thread::sleep(SLICE);
    }
    Ok(())
}

fn add(cell: impl Fn(&Counts) -> &Cell<u64>, amount: u64) {
    COUNTS.with(|counts| {
        let cell = cell(counts);
        cell.set(cell.get() + amount);
    });
}

#[inline(never)]
fn outer(round: u64) {
    let began = Instant::now();
    add(|it| &it.outer, 1);
    for number in 0..round % 7 {
        inner(number);
    }
    recursive(round % 5);
    if round.is_multiple_of(50) {
        waits();
    }
    // A call that ends by a panic, not by its return.
    let _ = std::panic::catch_unwind(|| unwinds(round % 3));
    add(|it| &it.outer_ns, began.elapsed().as_nanos() as u64);
}

#[inline(never)]
fn inner(number: u64) {
    add(|it| &it.inner, 1);
    SINK.fetch_add(black_box(number), Ordering::Relaxed);
}

#[inline(never)]
fn recursive(depth: u64) -> u64 {
    add(|it| &it.recursive, 1);
    match depth {
        0 => 1,
        depth => black_box(recursive(depth - 1)) + 1,
    }
}

#[inline(never)]
fn waits() {
    let began = Instant::now();
    add(|it| &it.waits, 1);
    thread::sleep(Duration::from_millis(5));
    add(|it| &it.waits_ns, began.elapsed().as_nanos() as u64);
}

#[inline(never)]
fn unwinds(depth: u64) {
    add(|it| &it.unwinds, 1);
    if depth == 0 {
        panic!("a part of the load");
    }
    unwinds(black_box(depth - 1));
    // Not a tail call.
    SINK.fetch_add(1, Ordering::Relaxed);
}
