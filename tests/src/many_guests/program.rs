//! The program that all guests run: a generated call graph, and the stacks in which it is
//! interrupted.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use unikprof_agent::{Mapping, Registers};

use crate::soak::random::Random;

/// The address of the program's code.
const CODE: u64 = 0x40_0000;
/// The length of a function's code.
const FUNCTION_BYTES: u64 = 512;
const FUNCTIONS: u64 = 1024;
/// The depths of stacks, in frames.
const SHALLOWEST: usize = 8;
const DEEPEST: usize = 40;

pub(super) const MAPPINGS: &[Mapping<'static>] = &[Mapping {
    start: CODE,
    end: CODE + FUNCTIONS * FUNCTION_BYTES,
    file_offset: 0,
    build_id: b"many-guests-program!",
    path: "many-guests.elf",
}];

/// The stacks, laid out in memory as the agent reads them.
#[derive(Debug)]
pub(super) struct Program {
    interrupted: Vec<Interrupted>,
    /// Frame records: the saved frame pointer, and the return address.
    _records: Vec<[u64; 2]>,
}

/// The registers of an interrupted stack, and the stack's bounds.
#[derive(Debug, Clone)]
pub(super) struct Interrupted {
    pub(super) registers: Registers,
    pub(super) bounds: Range<u64>,
}

impl Program {
    /// So many distinct stacks; the same number gives the same stacks.
    pub(super) fn new(stacks: usize) -> Program {
        let mut random = Random::new(1);
        let mut all = BTreeSet::new();
        while all.len() < stacks {
            all.insert(stack(&mut random));
        }
        let all: Vec<Vec<u64>> = all.into_iter().collect();
        let mut records = vec![[0, 0]; all.iter().map(|stack| stack.len() - 1).sum()];
        let start = records.as_ptr().expose_provenance() as u64;
        let mut used = 0;
        let interrupted = all.iter().map(|stack| {
            let (leaf, callers) = (stack[0], &stack[1..]);
            let first = start + 16 * used as u64;
            for (at, caller) in callers.iter().enumerate() {
                let outermost = at + 1 == callers.len();
                let next = first + 16 * (at as u64 + 1);
                records[used + at] = [if outermost { 0 } else { next }, *caller];
            }
            used += callers.len();
            Interrupted {
                registers: Registers::new(leaf, first, first),
                bounds: first..start + 16 * used as u64,
            }
        });
        Program { interrupted: interrupted.collect(), _records: records }
    }

    /// The stack of the tick with this number, counted from 0: all of them in turns, so that no two
    /// ticks of a short time have the same.
    pub(super) fn at(&self, tick: u64) -> &Interrupted {
        let stacks = self.interrupted.len() as u64;
        &self.interrupted[(tick % stacks) as usize]
    }

    /// The functions' names, as `nm -S` prints them.
    pub(super) fn symbols() -> String {
        let mut text = String::new();
        for function in 0..FUNCTIONS {
            let address = CODE + function * FUNCTION_BYTES;
            let _ = writeln!(text, "{address:016x} {FUNCTION_BYTES:016x} T function_{function:04}");
        }
        text
    }
}

/// A stack, leaf first: a way through the call graph, in which half of all functions call one other
/// function, and the others two.
fn stack(random: &mut Random) -> Vec<u64> {
    let depth = SHALLOWEST + random.below((DEEPEST - SHALLOWEST + 1) as u64) as usize;
    let mut function = 0;
    let mut stack = Vec::with_capacity(depth);
    for _ in 1..depth {
        let call = random.below(1 + hash(function) % 2);
        // After the call instruction.
        stack.push(address(function, 16 + 32 * call));
        function = (function + 1 + hash(2 * function + call) % 64) % FUNCTIONS;
    }
    stack.push(address(function, 8 * random.below(16)));
    stack.reverse();
    stack
}

fn address(function: u64, offset: u64) -> u64 {
    CODE + function * FUNCTION_BYTES + offset
}

fn hash(value: u64) -> u64 {
    (value + 1).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40
}
