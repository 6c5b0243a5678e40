//! Stacks of a generated program, and memory for walking them.
//!
//! Two of three functions call one other function, the others two to six with different
//! frequencies; a frame takes 16 to 120 bytes of stack. A sample is at one of 8 to 31 places in its
//! leaf. So stacks share their outer callers and differ mostly at the leaf, like those of real
//! programs. The same seed always gives the same stacks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unikprof_agent::{Mapping, Registers};

/// The address of the generated program's code.
const CODE: u64 = 0x40_0000;
/// The length of a function's code.
const FUNCTION_BYTES: u64 = 512;
const FUNCTIONS: u64 = 4096;

/// The generated program's only mapping.
pub(crate) const MAPPING: Mapping<'static> = Mapping {
    start: CODE,
    end: CODE + FUNCTIONS * FUNCTION_BYTES,
    file_offset: 0,
    build_id: &[],
    path: "",
};

/// A random number generator: Marsaglia's xorshift64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose numbers depend on `seed` only.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

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

/// A stack with the program's natural depth: 7 frames or more; distinct stacks have 26 on average.
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
        // After the call instruction.
        addresses.push(address(function, 16 + call * 32));
        function = callee(function, call);
    }
    let places = 8 + hash(function) % 24;
    addresses.push(address(function, random.below(places) * 16));
    addresses.reverse();
    Stack(addresses)
}

/// Selects one of a function's calls: each half as often as the previous one.
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

/// Memory for one stack at a time, like a thread's stack.
#[derive(Debug)]
pub(crate) struct StackImage {
    words: Box<[AtomicU64]>,
}

/// The distance of the first frame record above the stack pointer, in words.
const LEAF_WORDS: usize = 4;
/// The maximum distance between two frame records, in words.
const FRAME_WORDS: usize = 16;

impl StackImage {
    /// Room for stacks of at most `depth` frames.
    pub(crate) fn new(depth: usize) -> Self {
        let words = LEAF_WORDS + FRAME_WORDS * depth;
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Writes `stack` to the memory and returns the registers of its leaf.
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
        let fp = if callers.is_empty() { 0 } else { at(LEAF_WORDS) };
        Registers::new(stack.0.first().copied().unwrap_or(0), bounds.start, fp)
    }

    /// The memory's addresses.
    pub(crate) fn bounds(&self) -> Range<u64> {
        let start = self.words.as_ptr().expose_provenance() as u64;
        start..start + 8 * self.words.len() as u64
    }
}
