//! A server's memory: requests that come and go, a store of a fixed size, and a leak.

use std::collections::VecDeque;
use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::Guest;

use crate::HEAP;
use crate::stop::Stop;

/// The sizes of a request and of an entry of the store, in bytes.
const REQUEST: usize = 700;
const ENTRY: usize = 2_000;
const LEAKED: usize = 1_000;
const ENTRIES: usize = 500;

/// The size of the arena that the guest reports; what it holds beside these allocations is not in
/// it.
const ARENA: u64 = 64 << 20;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    HEAP.attach(guest.agent());
    let _vcpu = guest.register_thread()?;
    let mut store = VecDeque::with_capacity(ENTRIES + 1);
    let mut leaked = Vec::new();
    let mut round = 0_u64;
    while !stop.is_set() {
        for _ in 0..20 {
            request();
        }
        store.push_back(entry());
        if store.len() > ENTRIES {
            store.pop_front();
        }
        leaked.push(leak());
        if round.is_multiple_of(100) {
            let used = store.len() * ENTRY + leaked.len() * LEAKED;
            guest.agent().arena("objects", used as u64, ARENA)?;
        }
        round += 1;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[inline(never)]
fn request() {
    black_box(vec![1_u8; REQUEST]);
}

#[inline(never)]
fn entry() -> Vec<u8> {
    black_box(vec![2; ENTRY])
}

#[inline(never)]
fn leak() -> Vec<u8> {
    black_box(vec![3; LEAKED])
}
