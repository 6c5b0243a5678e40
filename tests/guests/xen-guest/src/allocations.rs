//! Allocations of known sizes, and books of their number: `allocations=PERCENT`.
//!
//! | function | bytes | number | freed |
//! |---|---|---|---|
//! | `request` | 700 | 4 a round of the first vCPU | by another vCPU |
//! | `reply` | 300 | 1 for each of them, on that vCPU | by the first vCPU |
//! | `list` | 256, then moved to 512 and 1,024 | 1 a round | at once |
//! | `entry` | 2,000 | 1 a round; it calls `checksum`, which calls itself six times | when 200 newer ones are stored |
//! | `leak` | 1,000 | 1 in 40 ms, 20,000 at most | never |
//! | `wish` | more than the heap has | 1 a round; a round is one only if it gets none | |
//!
//! The numbers since the start are counters in the profiler's ring, about 25 times a second:
//! `rounds` and `leaks` of the first vCPU, `replies` of the second. In each round a free is
//! reported of what was never allocated. The difference of two values is the exact number in
//! between.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::hint::black_box;
use core::mem;

use unikprof_agent::EventName;
use xen_sys_lite::vcpu::VcpuId;

use crate::lock::SpinLock;
use crate::vcpus::FIRST;
use crate::{events, timer};

const REQUEST: usize = 700;
const REQUESTS: usize = 4;
const REPLY: usize = 300;
const LIST: [usize; 3] = [256, 512, 1_024];
const ENTRY: usize = 2_000;
const ENTRIES: usize = 200;
const LEAK: usize = 1_000;
const LEAKS: u64 = 20_000;
/// The time from a round to the next one, at least: a fast machine would fill the ring in seconds.
const ROUND_NS: u64 = 2_000_000;
const PERIOD_NS: u64 = 40_000_000;

/// Allocations of one vCPU that another one frees.
static FOR_OTHERS: SpinLock<Queue> = SpinLock::new(Queue::new());
static FOR_FIRST: SpinLock<Queue> = SpinLock::new(Queue::new());

/// One vCPU's allocations.
pub(crate) struct Allocations {
    vcpu: VcpuId,
    rounds: Book,
    replies: Book,
    leaks: Book,
    store: VecDeque<Box<[u8]>>,
    state: u64,
    /// When the next round may begin.
    next_ns: u64,
    /// When to leak and to report next.
    due_ns: u64,
}

/// A number that is reported.
struct Book {
    counter: Option<EventName>,
    number: u64,
}

impl Allocations {
    pub(crate) fn new(vcpu: VcpuId) -> Self {
        Self {
            vcpu,
            rounds: Book::new("rounds"),
            replies: Book::new("replies"),
            leaks: Book::new("leaks"),
            store: VecDeque::with_capacity(ENTRIES + 1),
            state: 1,
            next_ns: 0,
            due_ns: 0,
        }
    }

    /// Some allocations, in a fraction of a millisecond; none if the last ones were a moment ago.
    pub(crate) fn round(&mut self) {
        let now_ns = timer::now_ns(self.vcpu);
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + ROUND_NS;
        let is_due = now_ns >= self.due_ns;
        if is_due {
            self.due_ns = now_ns + PERIOD_NS;
        }
        if self.vcpu == FIRST {
            self.round_of_first();
            if is_due {
                if self.leaks.number < LEAKS {
                    mem::forget(leak(&mut self.state));
                    self.leaks.number += 1;
                }
                self.rounds.report();
                self.leaks.report();
            }
        } else {
            self.round_of_others();
            if is_due {
                self.replies.report();
            }
        }
    }

    #[inline(never)]
    fn round_of_first(&mut self) {
        self.rounds.number += u64::from(wish());
        if let Some(agent) = events::agent() {
            agent.on_free((&raw const FOR_OTHERS).cast());
        }
        for _ in 0..REQUESTS {
            let request = request(&mut self.state);
            // Without room, because no other vCPU runs, it is freed here.
            let left = FOR_OTHERS.lock().put(request);
            drop(left);
        }
        list(&mut self.state);
        self.store.push_back(entry(&mut self.state));
        if self.store.len() > ENTRIES {
            self.store.pop_front();
        }
        while let Some(reply) = take(&FOR_FIRST) {
            drop(reply);
        }
    }

    #[inline(never)]
    fn round_of_others(&mut self) {
        while let Some(request) = take(&FOR_OTHERS) {
            drop(request);
            let reply = reply(&mut self.state);
            self.replies.number += 1;
            let left = FOR_FIRST.lock().put(reply);
            drop(left);
        }
    }
}

impl Book {
    fn new(name: &str) -> Self {
        Self { counter: events::name(name), number: 0 }
    }

    fn report(&self) {
        if let (Some(agent), Some(counter)) = (events::agent(), self.counter) {
            agent.counter(counter, self.number.cast_signed());
        }
    }
}

#[inline(never)]
fn request(state: &mut u64) -> Box<[u8]> {
    filled(vec![0; REQUEST], state)
}

#[inline(never)]
fn reply(state: &mut u64) -> Box<[u8]> {
    filled(vec![0; REPLY], state)
}

#[inline(never)]
fn entry(state: &mut u64) -> Box<[u8]> {
    let entry = filled(vec![0; ENTRY], state);
    *state ^= checksum(&entry);
    entry
}

/// A checksum that calls itself for each half of more than 500 bytes.
#[inline(never)]
fn checksum(bytes: &[u8]) -> u64 {
    if bytes.len() > 500 {
        let (one, other) = bytes.split_at(bytes.len() / 2);
        return checksum(one).rotate_left(7) ^ checksum(other).wrapping_mul(31);
    }
    bytes.iter().fold(1, |sum, byte| sum.wrapping_mul(31) ^ u64::from(*byte))
}

#[inline(never)]
fn leak(state: &mut u64) -> Box<[u8]> {
    filled(vec![0; LEAK], state)
}

/// Whether there is no memory for this.
#[inline(never)]
fn wish() -> bool {
    let mut wish = Vec::<u8>::new();
    wish.try_reserve_exact(black_box(1 << 40)).is_err()
}

/// A list that grows twice, each time into another block.
#[inline(never)]
fn list(state: &mut u64) {
    let mut list = Vec::<u8>::new();
    for length in LIST {
        list.reserve_exact(length - list.len());
        list.resize(length, *state as u8);
        list = black_box(list);
    }
}

/// The same bytes with random contents: what a guest does with its memory takes longer than to
/// allocate it.
#[inline(always)]
fn filled(mut bytes: Vec<u8>, state: &mut u64) -> Box<[u8]> {
    for byte in &mut bytes {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *byte = *state as u8;
    }
    black_box(bytes).into_boxed_slice()
}

/// As many requests as the first vCPU makes while another one rests.
const QUEUE: usize = 128;

struct Queue {
    blocks: [Option<Box<[u8]>>; QUEUE],
}

impl Queue {
    const fn new() -> Self {
        Self { blocks: [const { None }; QUEUE] }
    }

    /// Stores a block; returns it if there is no room.
    fn put(&mut self, block: Box<[u8]>) -> Option<Box<[u8]>> {
        match self.blocks.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(block);
                None
            }
            None => Some(block),
        }
    }
}

fn take(from: &SpinLock<Queue>) -> Option<Box<[u8]>> {
    from.lock().blocks.iter_mut().find_map(Option::take)
}
