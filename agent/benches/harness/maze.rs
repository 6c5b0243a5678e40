//! Real stacks through many call sites: functions that call each other at random, and copies of
//! their stacks.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::arch::asm;
use std::collections::HashSet;
use std::hint::black_box;

use unikprof_agent::stack::{FRAME_RECORD, ReadStack};
use unikprof_agent::{CodeMap, Registers};

use crate::harness::fake::stacks::Random;

/// A copy of a thread's stack.
pub(crate) struct Copied {
    pub(crate) registers: Registers,
    /// The stack's words from the stack pointer to the end of the outermost frame.
    words: Vec<u64>,
    return_addresses: Vec<u64>,
}

/// Makes `depth` nested calls, chosen by `seed`, and copies the stack there.
pub(crate) fn walk_and_copy(seed: u64, depth: u32, end: u64, code: &CodeMap) -> Copied {
    let mut visit = Visit { random: Random::new(seed + 1), end, code, copied: None };
    black_box(FUNCTIONS[0](&mut visit, depth));
    visit.copied.unwrap()
}

/// The number of different return addresses in the stacks.
pub(crate) fn distinct_return_addresses(stacks: &[Copied]) -> usize {
    let all = stacks.iter().flat_map(|stack| &stack.return_addresses);
    all.collect::<HashSet<_>>().len()
}

/// One memory to which all stacks are written, like a thread's stack.
pub(crate) struct Live {
    words: Vec<u64>,
    base: u64,
    end: u64,
}

impl Live {
    pub(crate) fn new(stacks: &[Copied]) -> Self {
        let longest = stacks.iter().map(|stack| stack.words.len()).max().unwrap();
        Self { words: vec![0; longest], base: 0, end: 0 }
    }

    pub(crate) fn lay(&mut self, stack: &Copied) {
        self.words[..stack.words.len()].copy_from_slice(&stack.words);
        self.base = stack.registers.sp;
        self.end = self.base + 8 * stack.words.len() as u64;
    }

    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (address < self.end && offset.is_multiple_of(8))
            .then(|| self.words.get(offset as usize / 8).copied())?
    }
}

impl ReadStack for Live {
    #[inline]
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        Some([self.word(fp)?, self.word(fp.checked_add(8)?)?])
    }

    #[inline]
    fn word(&self, address: u64) -> Option<u64> {
        Live::word(self, address)
    }

    #[inline]
    fn end(&self) -> u64 {
        self.end
    }
}

struct Visit<'a> {
    random: Random,
    end: u64,
    code: &'a CodeMap,
    copied: Option<Copied>,
}

/// The registers of this function's caller: a pc inside it, its stack pointer and frame pointer.
#[inline(always)]
pub(crate) fn registers() -> Registers {
    let (pc, sp, fp): (u64, u64, u64);
    // SAFETY: copies registers.
    unsafe {
        asm!(
            "lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
            out(reg) pc, out(reg) sp, out(reg) fp,
            options(nomem, nostack, preserves_flags)
        );
    }
    Registers::new(pc, sp, fp)
}

#[inline(never)]
fn copy_stack(visit: &mut Visit<'_>) -> u64 {
    let registers = registers();
    let Registers { sp, fp, .. } = registers;
    let base = std::ptr::with_exposed_provenance::<u64>(sp as usize);
    let size = ((visit.end - sp) / 8) as usize;
    // SAFETY: this thread's stack, from the stack pointer to its end.
    let mut words: Vec<u64> =
        (0..size).map(|index| unsafe { base.add(index).read_volatile() }).collect();
    // The copy ends after the outermost frame with a frame pointer.
    let (mut at, mut return_addresses) = (fp, Vec::new());
    let mut end = sp;
    while let Some(index) = at.checked_sub(sp).map(|offset| offset as usize / 8) {
        let Some([caller_fp, return_address]) = words.get(index..index + 2).map(|w| [w[0], w[1]])
        else {
            break;
        };
        if visit.code.code(return_address).is_none() {
            break;
        }
        return_addresses.push(return_address);
        end = at + FRAME_RECORD;
        if caller_fp <= at {
            break;
        }
        at = caller_fp;
    }
    words.truncate(((end - sp) / 8) as usize);
    visit.copied = Some(Copied { registers, words, return_addresses });
    1
}

/// A function with 32 call sites for the next function.
macro_rules! function {
    ($salt:literal: $($arm:literal)*) => {{
        #[inline(never)]
        fn function(visit: &mut Visit<'_>, depth: u32) -> u64 {
            let Some(depth) = depth.checked_sub(1) else {
                return black_box(copy_stack(visit)) + black_box($salt);
            };
            let choice = visit.random.below(1 << 53);
            let callee = FUNCTIONS[(choice >> 5) as usize % FUNCTIONS.len()];
            match choice % 32 {
                $($arm => {
                    // A unique text on both sides of each call, so that no two calls are merged.
                    // SAFETY: the assembly is only a comment.
                    unsafe { asm!("/* to {} \
                                   */", const $arm, options(nomem, nostack, preserves_flags)) };
                    let sum = black_box(callee(visit, depth));
                    // SAFETY: as above.
                    unsafe { asm!("/* from {} \
                                   */", const $arm, options(nomem, nostack, preserves_flags)) };
                    sum + 1
                })*
                _ => 0,
            }
        }
        function as fn(&mut Visit<'_>, u32) -> u64
    }};
}

macro_rules! functions {
    ($($salt:literal)*) => {
        [$(function!($salt: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26
            27 28 29 30 31)),*]
    };
}

static FUNCTIONS: [fn(&mut Visit<'_>, u32) -> u64; 64] = functions!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);
