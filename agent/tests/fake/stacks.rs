//! Stacks of a made-up program, and memory that they can be walked in.
//!
//! Two of three functions call one other, the rest two to six, some often and some rarely; a frame
//! takes 16 to 120 bytes of stack. A sample lands at one of 8 to 31 places in its leaf. So stacks
//! share their outer callers and differ mostly at the leaf, as those of real programs do. The same
//! seed makes the same stacks everywhere.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unikprof_agent::{Mapping, Registers};

/// Where the made-up program's code begins.
const CODE: u64 = 0x40_0000;
/// How much code a function has.
const FUNCTION_BYTES: u64 = 512;
const FUNCTIONS: u64 = 4096;

/// The made-up program's one mapping.
pub(crate) const MAPPING: Mapping<'static> = Mapping {
    start: CODE,
    end: CODE + FUNCTIONS * FUNCTION_BYTES,
    file_offset: 0,
    build_id: &[],
    path: "",
};

/// A generator of random numbers: Marsaglia's xorshift64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose numbers depend on `seed` alone.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// One interrupted stack: the pc, then return addresses towards the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stack(pub(crate) Vec<u64>);

/// A stack as deep as the program happens to be: 7 frames and more; distinct ones have 26 in the mean.
pub(crate) fn any_stack(random: &mut Random) -> Stack {
    let mut depth = 7;
    while depth < 120 && random.below(14) != 0 {
        depth += 1;
    }
    stack(random, depth)
}

/// A stack of `depth` frames.
pub(crate) fn stack(random: &mut Random, depth: usize) -> Stack {
    let mut function = 0;
    let mut addresses = Vec::with_capacity(depth);
    for _ in 1..depth {
        let call = call(random, function);
        // Behind the call's own instruction.
        addresses.push(address(function, 16 + call * 32));
        function = callee(function, call);
    }
    let places = 8 + hash(function) % 24;
    addresses.push(address(function, random.below(places) * 16));
    addresses.reverse();
    Stack(addresses)
}

/// Which of its calls a function is in: each half as often as the one before it.
fn call(random: &mut Random, function: u64) -> u64 {
    let calls = match hash(function) % 15 {
        several @ ..5 => 2 + several,
        _ => 1,
    };
    let mut call = 0;
    while call + 1 < calls && random.below(2) == 0 {
        call += 1;
    }
    call
}

fn callee(function: u64, call: u64) -> u64 {
    (function + 1 + hash(function * 8 + call) % 64) % FUNCTIONS
}

fn address(function: u64, offset: u64) -> u64 {
    CODE + function * FUNCTION_BYTES + offset
}

fn hash(value: u64) -> u64 {
    (value + 1).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40
}

/// Memory that one stack after the other is laid into, as a thread's stack is one memory.
#[derive(Debug)]
pub(crate) struct StackImage {
    words: Box<[AtomicU64]>,
}

/// The stack pointer lies this many words below the first frame record.
const LEAF_WORDS: usize = 4;
/// The most words from one frame record to the next.
const FRAME_WORDS: usize = 16;

impl StackImage {
    /// Room for stacks of at most `depth` frames.
    pub(crate) fn new(depth: usize) -> Self {
        let words = LEAF_WORDS + FRAME_WORDS * depth;
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Lays `stack` and answers the registers it would have been interrupted with.
    pub(crate) fn lay(&self, stack: &Stack) -> Registers {
        let bounds = self.bounds();
        let at = |word: usize| bounds.start + 8 * word as u64;
        let mut word = LEAF_WORDS;
        let callers = stack.0.get(1..).unwrap_or_default();
        for (index, caller) in callers.iter().enumerate() {
            let next = word + 2 + (hash(*caller) as usize) % (FRAME_WORDS - 1);
            let last = index + 1 == callers.len();
            self.words[word].store(if last { 0 } else { at(next) }, Ordering::Relaxed);
            self.words[word + 1].store(*caller, Ordering::Relaxed);
            word = next;
        }
        let fp = if callers.is_empty() {
            0
        } else {
            at(LEAF_WORDS)
        };
        Registers::new(stack.0.first().copied().unwrap_or(0), bounds.start, fp)
    }

    /// The memory's addresses.
    pub(crate) fn bounds(&self) -> Range<u64> {
        let start = self.words.as_ptr().expose_provenance() as u64;
        start..start + 8 * self.words.len() as u64
    }
}
