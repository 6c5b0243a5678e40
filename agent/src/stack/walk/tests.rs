//! Walks over stacks of x86-64 made of words, on every processor.

#![allow(clippy::unwrap_used)]

extern crate std;

use core::mem::MaybeUninit;
use std::vec;
use std::vec::Vec;

use unikprof_proto::caller_table::{Base, Caller, Row};

use super::*;
use crate::ground::platform::Continuation;
use crate::stack::ReadStack;
use crate::stack::architecture::X86_64;
use crate::stack::code_map::Mapping;
use crate::stack::path::PathCells;

pub(super) const CODE: u64 = 0x40_0000;
pub(super) const STACK: u64 = 0x8000;

/// A stack of words from [`STACK`] on.
struct Words(Vec<u64>);

impl ReadStack for Words {
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        let offset = fp.checked_sub(STACK)?;
        if offset % 8 != 0 {
            return None;
        }
        let index = (offset / 8) as usize;
        Some([*self.0.get(index)?, *self.0.get(index + 1)?])
    }

    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(STACK)?;
        let word = self.0.get((offset / 8) as usize)?;
        offset.is_multiple_of(8).then_some(*word)
    }

    fn end(&self) -> u64 {
        STACK + 8 * self.0.len() as u64
    }
}

fn walk_words(words: &[u64], fp: u64, depth: usize) -> (End, Vec<u32>) {
    let mapping =
        Mapping { start: CODE, end: CODE + 0x1000, file_offset: 0, build_id: &[], path: "" };
    let code = CodeMap::new(&[mapping]).unwrap();
    let cells = PathCells::default();
    let registers = Registers::new(CODE, STACK, fp);
    let stack = Words(words.to_vec());
    let guide = Guide::frame_pointers(&code);
    let mut path = cells.begin();
    let walked = walk_on::<X86_64>(&registers, Some(&stack), &guide, depth, &mut path);
    assert_eq!((walked.way, walked.mixed), (Way::FramePointer, false));
    (walked.end, path.codes().collect())
}

/// Codes of addresses relative to [`CODE`].
pub(super) fn codes(offsets: &[u32]) -> Vec<u32> {
    offsets.iter().map(|offset| 16 + offset).collect()
}

#[test]
fn a_chain_ends_at_a_zero_frame_pointer() {
    let words = [STACK + 16, CODE + 1, STACK + 40, CODE + 2, 99, 0, CODE + 3, 99];
    assert_eq!(walk_words(&words, STACK, 128), (End::Root, codes(&[0, 1, 2, 3])));
}

/// A thread's first function saves whatever rbp contains at its entry; the stack ends with its
/// frame.
#[test]
fn a_chain_ends_with_the_stack() {
    let words = [STACK + 16, CODE + 1, 0xdead_beef, CODE + 2];
    assert_eq!(walk_words(&words, STACK, 128), (End::Root, codes(&[0, 1, 2])));
}

#[test]
fn a_zero_return_address_is_the_root() {
    assert_eq!(walk_words(&[STACK + 16, 0, 7, 7], STACK, 128), (End::Root, codes(&[0])));
}

#[test]
fn a_cycle_is_broken_not_endless() {
    for caller_fp in [STACK, STACK + 8] {
        let words = [caller_fp, CODE + 1, 0, 0, 0];
        let (end, path) = walk_words(&words, STACK, 128);
        assert_eq!(end, End::Broken);
        assert_eq!(path, [16, 17, frame_code::BROKEN]);
    }
}

#[test]
fn records_outside_misaligned_or_without_code_break_the_chain() {
    let ends_in = |record: [u64; 2]| {
        let words = [STACK + 16, CODE + 1, record[0], record[1], 0, 0];
        walk_words(&words, STACK, 128).0
    };
    assert_eq!(ends_in([STACK + 20, CODE]), End::Broken, "misaligned");
    assert_eq!(ends_in([u64::MAX - 7, CODE]), End::Broken, "at the top of memory");
    assert_eq!(ends_in([STACK + 40, CODE]), End::Broken, "half a record");
    for (garbage, what) in [
        (7, "a small integer"),
        (STACK + 40, "an address of the stack"),
        (0x3ff0_0000_0000_0000, "not canonical"),
    ] {
        assert_eq!(ends_in([0, garbage]), End::Broken, "{what}");
    }
    assert_eq!(walk_words(&[0; 4], STACK - 16, 128).0, End::Broken, "below the stack pointer");
}

/// Code that was loaded or generated after the start is outside all mappings. Its frames are
/// counted and the chain continues after them.
#[test]
fn return_addresses_outside_all_mappings_are_frames_of_unknown_code() {
    const LATER: u64 = 0x7f12_3456_7000;
    let words =
        [STACK + 16, CODE + 1, STACK + 32, LATER, STACK + 48, LATER + 64, 0, CODE + 2, 7, 7];
    let unknown = frame_code::UNKNOWN_CODE;
    let (end, path) = walk_words(&words, STACK, 128);
    assert_eq!(end, End::Root);
    assert_eq!(path, [16, 17, unknown, unknown, 18]);
    // A frame of unknown code may be the outermost.
    for root in [&[0, LATER, 7, 7][..], &[0xdead_beef, LATER]] {
        let (end, path) = walk_words(root, STACK, 128);
        assert_eq!((end, &path[..]), (End::Root, &[16, unknown][..]));
    }
}

/// A record with a return address outside all mappings is accepted only if the chain rises from it.
#[test]
fn a_chain_of_garbage_ends_as_broken() {
    const LATER: u64 = 0x7f12_3456_7000;
    for caller_fp in [STACK, STACK + 8, STACK + 20, 99, u64::MAX - 7, STACK + 64] {
        let words = [caller_fp, LATER, 0, CODE, 0, 0, 0, 0];
        let (end, path) = walk_words(&words, STACK, 128);
        assert_eq!((end, path.len()), (End::Broken, 2), "{caller_fp:#x}");
    }
    let endless: Vec<u64> = (1..=100).flat_map(|n| [STACK + 16 * n, LATER + n]).collect();
    let (end, path) = walk_words(&endless, STACK, 128);
    assert_eq!(end, End::Broken);
    assert_eq!(path.len(), 1 + MAX_UNKNOWN as usize + 1);
    assert_eq!(walk_words(&endless, STACK, 10).0, End::Truncated);
}

/// A function without a frame, called by code outside all mappings.
#[test]
fn a_rule_leads_to_unknown_code() {
    const LATER: u64 = 0x7f12_3456_7000;
    let words = [99, LATER, 77, 0, CODE + 2];
    let (walked, path) = walk_with(&words, LEAF, &[row(0, from_sp(2, None))], false, ());
    assert_eq!(path, [16, frame_code::UNKNOWN_CODE, 18]);
    assert_eq!((walked.way, walked.end), (Way::Table, End::Root));
}

#[test]
fn depth_is_a_limit_and_said() {
    let mut words: Vec<u64> = (1..=200).flat_map(|n| [STACK + 16 * n, CODE + n]).collect();
    words[398] = 0;
    let (end, path) = walk_words(&words, STACK, 128);
    assert_eq!((end, path.len()), (End::Truncated, 129));
    assert_eq!(path[128], frame_code::TRUNCATED);
    let exact: Vec<u64> =
        (1..=127).flat_map(|n| [if n == 127 { 0 } else { STACK + 16 * n }, CODE + n]).collect();
    assert_eq!(walk_words(&exact, STACK, 128).0, End::Root, "128 frames fit exactly");
    assert_eq!(walk_words(&exact, STACK, 1).1, [16, frame_code::TRUNCATED]);
}

#[test]
fn an_unknown_pc_is_said_and_the_walk_goes_on() {
    let mapping = Mapping { start: 1, end: 2, file_offset: 0, build_id: &[], path: "" };
    let code = CodeMap::new(&[mapping]).unwrap();
    let cells = PathCells::default();
    let registers = Registers::new(77, STACK, 0);
    let guide = Guide::frame_pointers(&code);
    let mut path = cells.begin();
    let walked = walk_on::<X86_64>(&registers, None::<&Words>, &guide, 128, &mut path);
    assert_eq!(walked.end, End::Broken);
    let path: Vec<u32> = path.codes().collect();
    assert_eq!(path, [frame_code::UNKNOWN_CODE, frame_code::BROKEN]);
}

/// Walks with the stack pointer at the first word, by the rules of `rows`.
fn walk_with(
    words: &[u64],
    registers: Registers,
    rows: &[Row],
    every_frame: bool,
    instructions: impl ReadCode,
) -> (Walked, Vec<u32>) {
    walk_on_with::<X86_64>(words, registers, rows, every_frame, instructions)
}

/// The same on a processor.
pub(super) fn walk_on_with<A: Architecture>(
    words: &[u64],
    registers: Registers,
    rows: &[Row],
    every_frame: bool,
    instructions: impl ReadCode,
) -> (Walked, Vec<u32>) {
    let mapping =
        Mapping { start: CODE, end: CODE + 0x1000, file_offset: 0, build_id: &[], path: "" };
    let code = CodeMap::new(&[mapping]).unwrap();
    let mut block = [MaybeUninit::uninit(); 1024];
    let table = CallerTable::from_rows(&mut block, &code, rows).unwrap();
    let cells = PathCells::default();
    let guide = Guide { code: &code, callers: Some(&table), every_frame, instructions };
    let stack = Words(words.to_vec());
    let mut path = cells.begin();
    let walked = walk_on::<A>(&registers, Some(&stack), &guide, 128, &mut path);
    (walked, path.codes().collect())
}

pub(super) fn row(offset: u32, rule: Rule) -> Row {
    Row { code: 16 + offset, rule }
}

fn from_sp(words: u16, saved_fp: Option<u8>) -> Rule {
    Rule::new(Caller::Cfa { base: Base::StackPointer, words, saved_fp })
}

const LEAF: Registers = Registers::new(CODE, STACK, STACK + 24);

/// A leaf without a frame: the frame pointer is its caller's, and the return address there would
/// skip the caller.
#[test]
fn the_table_finds_the_caller_of_a_leaf() {
    let words = [99, CODE + 1, 77, 0, CODE + 2];
    let naive = walk_with(&words, LEAF, &[], false, ());
    assert_eq!(naive.1, codes(&[0, 2]), "the caller is passed over");
    assert_eq!(naive.0.way, Way::FramePointer);
    let (walked, path) = walk_with(&words, LEAF, &[row(0, from_sp(2, None))], false, ());
    assert_eq!(path, codes(&[0, 1, 2]));
    assert_eq!((walked.way, walked.end), (Way::Table, End::Root));
}

/// After `push rbp` the caller's frame pointer is on the stack. After `pop rbp` it is in the
/// register again, whatever location below the stack pointer the rule says.
#[test]
fn the_frame_pointer_is_restored_from_above_the_stack_pointer_only() {
    let words = [STACK + 24, CODE + 1, 77, 0, CODE + 2];
    let pushed = Registers { fp: 1, ..LEAF };
    let rule = [row(0, from_sp(2, Some(2)))];
    assert_eq!(walk_with(&words, pushed, &rule, false, ()).1, codes(&[0, 1, 2]));
    let words = [CODE + 1, 77, 77, 0, CODE + 2];
    let rule = [row(0, from_sp(1, Some(2)))];
    assert_eq!(walk_with(&words, LEAF, &rule, false, ()).1, codes(&[0, 1, 2]));
}

/// The frame pointer is followed where a rule leads nowhere.
#[test]
fn a_hostile_rule_is_passed_over() {
    let words = [99, CODE + 1, 77, 0, CODE + 2];
    let hostile = [
        from_sp(0, None),
        from_sp(1, None),
        from_sp(6, None),
        from_sp(u16::MAX, Some(63)),
        Rule::new(Caller::Cfa { base: Base::FramePointer, words: u16::MAX, saved_fp: Some(1) }),
        Rule(u32::MAX),
    ];
    for rule in hostile {
        let (walked, path) = walk_with(&words, LEAF, &[row(0, rule)], false, ());
        assert_eq!(path, codes(&[0, 2]), "{rule:?}");
        assert_eq!(walked.way, Way::FramePointer, "{rule:?}");
    }
    let registers = Registers { fp: u64::MAX, ..LEAF };
    let rule = [row(0, hostile[4])];
    let (walked, _) = walk_with(&words, registers, &rule, true, ());
    assert_eq!(walked.end, End::Broken);
}

#[test]
fn the_outermost_function_has_no_caller() {
    let rule = [row(0, Rule::OUTERMOST)];
    let (walked, path) = walk_with(&[99, CODE + 1, 77, 0, CODE + 2], LEAF, &rule, false, ());
    assert_eq!((walked.end, walked.way), (End::Root, Way::Table));
    assert_eq!(path, codes(&[0]));
}

/// A function without a frame in the middle of a stack breaks the chain of records, but not the
/// lookup of every frame.
#[test]
fn every_frame_is_looked_up_where_that_is_asked_for() {
    // The leaf has a record; its caller at offset 0x100 saves two words and no frame pointer.
    let words = [STACK + 48, CODE + 0x101, 5, 6, CODE + 0x201, 7, 0, CODE + 0x301];
    let leaf = Registers { fp: STACK, ..LEAF };
    let rows = [
        row(0, Rule::FRAME_RECORD),
        row(0x100, from_sp(3, None)),
        row(0x200, Rule::FRAME_RECORD),
        row(0x300, Rule::UNKNOWN),
    ];
    let (walked, path) = walk_with(&words, leaf, &rows, false, ());
    assert_eq!(path, codes(&[0, 0x101, 0x301]), "the chain passes one over");
    assert!(!walked.mixed);
    let (walked, path) = walk_with(&words, leaf, &rows, true, ());
    assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
    assert_eq!((walked.end, walked.mixed), (End::Root, false));
    let unknown = [rows[0], row(0x100, from_sp(3, None)), row(0x200, Rule::UNKNOWN)];
    let (walked, path) = walk_with(&words, leaf, &unknown, true, ());
    assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
    assert!(walked.mixed, "a frame was found by its frame pointer");
}

/// A frame pointer of 0 ends the chain only in the outermost function; the table knows which
/// functions are not the outermost.
#[test]
fn a_zero_that_comes_too_early_is_broken() {
    let words = [0, CODE + 0x101, 7, 8, 9];
    let leaf = Registers { fp: STACK, ..LEAF };
    let rows = |rule| [row(0, Rule::FRAME_RECORD), row(0x100, rule)];
    for (rule, end) in [
        (Rule::FRAME_RECORD, End::Broken),
        (from_sp(3, None), End::Broken),
        (Rule::UNKNOWN, End::Root),
        (Rule::OUTERMOST, End::Root),
    ] {
        let (walked, path) = walk_with(&words, leaf, &rows(rule), false, ());
        assert_eq!(walked.end, end, "{rule:?}");
        assert_eq!(path[..2], codes(&[0, 0x101]));
    }
    let by_table = walk_with(&words, leaf, &rows(Rule::FRAME_RECORD), true, ());
    assert_eq!(by_table.0.end, End::Broken);
    let no_frame = Registers { fp: 0, ..LEAF };
    let at_leaf = walk_with(&words, no_frame, &rows(Rule::UNKNOWN), false, ());
    assert_eq!(at_leaf.0.end, End::Broken, "the leaf has a record, says the table");
    // The end of the stack is the root, whatever the table says.
    let whole = [0, CODE + 0x101];
    let (walked, _) = walk_with(&whole, leaf, &rows(Rule::FRAME_RECORD), false, ());
    assert_eq!(walked.end, End::Root);
}

struct Bytes([u8; 5]);

impl ReadCode for Bytes {
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        assert_eq!(pc, CODE);
        Some(self.0)
    }
}

#[test]
fn entries_and_returns_are_known_by_their_bytes() {
    let words = [CODE + 1, 77, 77, 0, CODE + 2];
    let at_entry = [
        [0x90, 0x55, 0x48, 0x89, 0xe5],
        [0x5d, 0xc3, 0x90, 0x90, 0x90],
        [0x90, 0xf3, 0xc3, 0x90, 0x90],
        [0x90, 0xf3, 0x0f, 0x1e, 0xfa],
    ];
    for bytes in at_entry {
        let (walked, path) = walk_with(&words, LEAF, &[], false, Bytes(bytes));
        assert_eq!(path, codes(&[0, 1, 2]), "{bytes:x?}");
        assert_eq!(walked.way, Way::Bytes);
    }
    let words = [STACK + 24, CODE + 1, 77, 0, CODE + 2];
    let pushed = Registers { fp: 1, ..LEAF };
    for bytes in [[0x55, 0x48, 0x89, 0xe5, 0x90], [0x55, 0x48, 0x8b, 0xec, 0x90]] {
        let (walked, path) = walk_with(&words, pushed, &[], false, Bytes(bytes));
        assert_eq!(path, codes(&[0, 1, 2]), "{bytes:x?}");
        assert_eq!(walked.way, Way::Bytes);
    }
    let other = Bytes([0x90; 5]);
    assert_eq!(walk_with(&words, LEAF, &[], false, other).0.way, Way::FramePointer);
    let known = [row(0, Rule::FRAME_RECORD)];
    let entry = Bytes(at_entry[0]);
    assert_eq!(
        walk_with(&words, LEAF, &known, false, entry).0.way,
        Way::Table,
        "the table knows better than the bytes"
    );
}

/// Stacks of words with their first addresses, and the platform's continuation of their ends.
struct Several {
    stacks: Vec<(u64, Vec<u64>)>,
    continuation: fn(u64, u64) -> Option<Continuation>,
}

struct WordsAt<'s>(u64, &'s [u64]);

impl ReadStack for WordsAt<'_> {
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        Some([self.word(fp)?, self.word(fp.checked_add(8)?)?])
    }

    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.0)?;
        let word = self.1.get((offset / 8) as usize)?;
        offset.is_multiple_of(8).then_some(*word)
    }

    fn end(&self) -> u64 {
        self.0 + 8 * self.1.len() as u64
    }
}

impl<'s> Stacks for &'s Several {
    type Stack = WordsAt<'s>;

    fn at(&self, address: u64) -> Option<WordsAt<'s>> {
        // Nothing below the address is readable, as with the stacks of guests in C.
        self.stacks.iter().find_map(|(start, words)| {
            let below = (address.checked_sub(*start)? / 8) as usize;
            let above = words.get(below..).filter(|above| !above.is_empty())?;
            Some(WordsAt(start + 8 * below as u64, above))
        })
    }

    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation> {
        (self.continuation)(sp, fp)
    }
}

const OTHER: u64 = 0x2_0000;

fn walk_several(
    several: &Several,
    rows: &[Row],
    every_frame: bool,
    depth: usize,
) -> (Walked, Vec<u32>) {
    let registers = Registers { fp: STACK, ..LEAF };
    walk_several_from(registers, several, rows, every_frame, depth)
}

fn walk_several_from(
    registers: Registers,
    several: &Several,
    rows: &[Row],
    every_frame: bool,
    depth: usize,
) -> (Walked, Vec<u32>) {
    let mapping =
        Mapping { start: CODE, end: CODE + 0x1000, file_offset: 0, build_id: &[], path: "" };
    let code = CodeMap::new(&[mapping]).unwrap();
    let mut block = [MaybeUninit::uninit(); 1024];
    let table = CallerTable::from_rows(&mut block, &code, rows).unwrap();
    let guide = Guide { code: &code, callers: Some(&table), every_frame, instructions: () };
    let cells = PathCells::default();
    let mut path = cells.begin();
    let walked = walk_on::<X86_64>(&registers, several, &guide, depth, &mut path);
    (walked, path.codes().collect())
}

/// A handler on an interrupt stack. Its entry code saves the interrupted registers, and leaves the
/// frame pointer or clears it. The interrupted function at 0x400 has a caller on the other stack.
fn interrupted(saved_fp: u64) -> Several {
    Several {
        stacks: vec![
            (STACK, vec![saved_fp, CODE + 0x101, 7, 7, 7]),
            (OTHER, vec![7, 7, OTHER + 32, CODE + 0x501, 0, CODE + 0x601, 7]),
        ],
        continuation: |sp, _| {
            let registers = Registers::new(CODE + 0x400, OTHER + 8, OTHER + 16);
            let on_handlers = (STACK..STACK + 40).contains(&sp);
            on_handlers.then_some(Continuation::Interrupted(registers))
        },
    }
}

#[test]
fn a_walk_goes_on_behind_an_interrupt_frame() {
    for saved_fp in [OTHER + 16, 0] {
        let several = interrupted(saved_fp);
        let (walked, path) = walk_several(&several, &[], false, 128);
        assert_eq!(path, codes(&[0, 0x101, 0x400, 0x501, 0x601]));
        assert_eq!(walked.end, End::Root);
    }
    let without = Several { continuation: |_, _| None, ..interrupted(OTHER + 16) };
    assert_eq!(walk_several(&without, &[], false, 128).0.end, End::Broken);
    // The interrupted instruction has its own row.
    let rows = [row(0x400, from_sp(1, None)), row(0x401, Rule::UNKNOWN)];
    let mut entered = interrupted(0);
    entered.stacks[1].1[1] = CODE + 0x701;
    let (walked, path) = walk_several(&entered, &rows, false, 128);
    assert_eq!(path, codes(&[0, 0x101, 0x400, 0x701, 0x501, 0x601]));
    assert_eq!(walked.end, End::Root);
    // If the platform does not know its stack, the interrupted function is the last frame.
    let nowhere = Several {
        continuation: |sp, _| {
            (sp < OTHER).then_some(Continuation::Interrupted(Registers { sp: 1 << 40, ..LEAF }))
        },
        ..interrupted(0)
    };
    let (walked, path) = walk_several(&nowhere, &[], false, 128);
    assert_eq!(walked.end, End::Broken);
    assert_eq!(path, [16, 16 + 0x101, 16, frame_code::BROKEN]);
}

#[test]
fn stacks_that_lead_to_each_other_end_at_a_limit() {
    let several = Several {
        continuation: |_, _| Some(Continuation::Interrupted(Registers { fp: STACK, ..LEAF })),
        ..interrupted(0)
    };
    let (walked, path) = walk_several(&several, &[], false, 128);
    assert_eq!(walked.end, End::Broken);
    assert_eq!(path.len(), 2 * (1 + MAX_HOPS as usize) + 1);
    let (walked, path) = walk_several(&several, &[], false, 4);
    assert_eq!((walked.end, path.len()), (End::Truncated, 5));
    let (walked, path) = walk_several(&several, &[], false, 3);
    assert_eq!((walked.end, path.len()), (End::Truncated, 4));
}

/// A C function called by OCaml code through `caml_c_call`: the runtime switches to the C stack and
/// stores the fiber's stack pointer in the second word above the C function's frame.
#[test]
fn a_loaded_frame_address_leads_to_another_stack() {
    const FIBER_FP: u64 = OTHER + 24;
    let several = |kept_sp, fp| Several {
        stacks: vec![
            (STACK, vec![fp, CODE + 0x101, 7, kept_sp, 7]),
            (OTHER, vec![7, CODE + 0x201, 7, 0, CODE + 0x301, 7]),
        ],
        continuation: |_, _| None,
    };
    let rule_of = |plus, saved_fp| {
        Rule::new(Caller::LoadedCfa { base: Base::StackPointer, at: 1, plus, saved_fp })
    };
    let rule = |saved_fp| rule_of(1, saved_fp);
    let rows = |rule| [row(0, Rule::FRAME_RECORD), row(0x100, rule), row(0x102, Rule::UNKNOWN)];
    for every_frame in [false, true] {
        let several = several(OTHER + 8, FIBER_FP);
        let (walked, path) = walk_several(&several, &rows(rule(None)), every_frame, 128);
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!((walked.end, walked.way), (End::Root, Way::Table));
        assert_eq!(walked.mixed, every_frame);
    }
    // The OCaml function has pushed its frame pointer before it switched: its record is not walked
    // again.
    for every_frame in [false, true] {
        let mut pushed = several(OTHER, OTHER);
        pushed.stacks[1].1[0] = FIBER_FP;
        let (walked, path) = walk_several(&pushed, &rows(rule_of(2, None)), every_frame, 128);
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!((walked.end, walked.way), (End::Root, Way::Table));
    }
    // The frame pointer is saved below the frame address.
    let mut saved = several(OTHER + 8, 99);
    saved.stacks[1].1[0] = FIBER_FP;
    let (_, path) = walk_several(&saved, &rows(rule(Some(2))), false, 128);
    assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
    // Interrupted in the function that switches stacks, which has no record.
    let at_leaf = Several {
        stacks: vec![
            (STACK, vec![7, OTHER + 8]),
            (OTHER, vec![7, CODE + 0x201, 7, 0, CODE + 0x301, 7]),
        ],
        continuation: |_, _| None,
    };
    let (walked, path) = walk_several(&at_leaf, &[row(0, rule(None))], false, 128);
    assert_eq!(path[..2], codes(&[0, 0x201]));
    assert_eq!(walked.way, Way::Table);
    let hostile = [0, 1, OTHER, OTHER + 12, OTHER + 16, 1 << 40, u64::MAX, STACK];
    for kept_sp in hostile {
        let several = several(kept_sp, FIBER_FP);
        let (walked, path) = walk_several(&several, &rows(rule(None)), false, 128);
        assert_eq!(walked.end, End::Broken, "{kept_sp:#x}");
        assert_eq!(path[..2], codes(&[0, 0x101]));
        assert_eq!(path.len(), 3);
    }
}

/// OCaml 5 with frame pointers: C called from OCaml, which an effect's handler resumed, and OCaml
/// called from C. Code from 0x100 on is C, from 0x500 on OCaml. The C stack is above the fibers or
/// below.
fn fibers(c_stack: u64, main_fiber: u64, fiber: u64) -> Several {
    Several {
        stacks: vec![
            (
                c_stack,
                vec![
                    // A C function, called through `caml_c_call` with the fiber's frame pointer.
                    fiber + 8,
                    CODE + 0x501,
                    7,
                    // `caml_start_program` and the program's own frames, which wait.
                    c_stack + 48,
                    CODE + 0x101,
                    7,
                    0,
                    CODE + 0x102,
                    7,
                ],
            ),
            (main_fiber, vec![7, c_stack + 24, CODE + 0x103]),
            (fiber, vec![7, fiber + 32, CODE + 0x502, 7, main_fiber + 8, CODE + 0x503, 7]),
        ],
        continuation: |_, _| Some(Continuation::FrameRecord),
    }
}

#[test]
fn frame_pointers_lead_through_fibers() {
    const THIRD: u64 = 0x3_0000;
    let expected = codes(&[0, 0x501, 0x502, 0x503, 0x103, 0x101, 0x102]);
    for (c_stack, main_fiber, fiber) in
        [(STACK, OTHER, THIRD), (OTHER, STACK, THIRD), (THIRD, OTHER, STACK)]
    {
        let several = fibers(c_stack, main_fiber, fiber);
        let registers = Registers::new(CODE, c_stack, c_stack);
        for every_frame in [false, true] {
            let (walked, path) =
                walk_several_from(registers, &several, &[row(0, Rule::UNKNOWN)], every_frame, 128);
            assert_eq!(path, expected);
            assert_eq!((walked.end, walked.way), (End::Root, Way::FramePointer));
            assert_eq!(walked.mixed, every_frame, "no frame has a row");
        }
        // One range may contain all stacks: the walk also continues below.
        let last = c_stack.max(main_fiber).max(fiber) + 72;
        let mut words = vec![7; ((last - STACK) / 8) as usize];
        for (start, stack) in &several.stacks {
            let at = ((start - STACK) / 8) as usize;
            words[at..at + stack.len()].copy_from_slice(stack);
        }
        let one = Several { stacks: vec![(STACK, words)], ..several };
        let unknown = [row(0, Rule::UNKNOWN)];
        let (walked, path) = walk_several_from(registers, &one, &unknown, false, 128);
        assert_eq!((walked.end, path), (End::Root, expected.clone()));
        let without = Several { continuation: |_, _| None, ..fibers(c_stack, main_fiber, fiber) };
        let (walked, path) = walk_several_from(registers, &without, &unknown, false, 128);
        assert_eq!(walked.end, End::Broken);
        assert_eq!(path, [16, 16 + 0x501, frame_code::BROKEN]);
    }
}

/// The interrupted function has switched stacks and has no frame on the new one.
#[test]
fn a_leaf_without_a_frame_is_left_by_its_frame_pointer() {
    let several = Several {
        stacks: vec![(STACK, vec![7, 7]), (OTHER, vec![0, CODE + 0x101, 7])],
        continuation: |_, _| Some(Continuation::FrameRecord),
    };
    let registers = Registers { fp: OTHER, ..LEAF };
    let unknown = [row(0, Rule::UNKNOWN)];
    let (walked, path) = walk_several_from(registers, &several, &unknown, true, 128);
    assert_eq!(path, codes(&[0, 0x101]));
    let expected = Walked { end: End::Root, way: Way::FramePointer, mixed: true };
    assert_eq!(walked, expected);
    // In the outermost function the register may contain anything.
    let outermost = [row(0, Rule::OUTERMOST)];
    let (walked, path) = walk_several_from(registers, &several, &outermost, false, 128);
    assert_eq!((walked.end, path), (End::Root, codes(&[0])));
}

#[test]
fn a_frame_pointer_that_leads_to_no_record_ends_the_walk() {
    let hostile = [
        0,
        1,
        OTHER - 8,
        OTHER + 4,
        // No return address inside the mappings.
        OTHER + 16,
        // Half a record.
        OTHER + 32,
        OTHER + 40,
        1 << 40,
        u64::MAX - 7,
    ];
    for fp in hostile {
        let at_end_of_stack = vec![fp, CODE + 0x101];
        let above = vec![fp, CODE + 0x101, 7];
        for (words, end) in [(at_end_of_stack, End::Root), (above, End::Broken)] {
            let several = Several {
                stacks: vec![
                    (STACK, words),
                    (OTHER, vec![0, CODE + 0x201, 7, 0x7f12_3456_7000, 0]),
                ],
                continuation: |_, _| Some(Continuation::FrameRecord),
            };
            let (walked, path) = walk_several(&several, &[row(0, Rule::UNKNOWN)], false, 128);
            let end = if fp == 0 { End::Root } else { end };
            assert_eq!((walked.end, &path[..2]), (end, &codes(&[0, 0x101])[..]), "{fp:#x}");
        }
    }
    // A coroutine's first frame may be the last on its stack.
    let several = Several {
        stacks: vec![(STACK, vec![OTHER, CODE + 0x101]), (OTHER, vec![0, CODE + 0x201, 7])],
        continuation: |_, _| Some(Continuation::FrameRecord),
    };
    let (walked, path) = walk_several(&several, &[row(0, Rule::UNKNOWN)], false, 128);
    assert_eq!((walked.end, path), (End::Root, codes(&[0, 0x101, 0x201])));
}

#[test]
fn coroutines_that_lead_to_each_other_end_at_a_limit() {
    let several = Several {
        stacks: vec![(STACK, vec![OTHER, CODE + 0x101, 7]), (OTHER, vec![STACK, CODE + 0x201, 7])],
        continuation: |_, _| Some(Continuation::FrameRecord),
    };
    let (walked, path) = walk_several(&several, &[row(0, Rule::UNKNOWN)], false, 128);
    assert_eq!(walked.end, End::Broken);
    assert_eq!(path.len(), 1 + 1 + MAX_HOPS as usize + 1);
}

/// OCaml with frame pointers: its rules count from the stack pointer and say nothing of rbp,
/// although the function has a frame record. The record's own caller comes next, not the function
/// again.
#[test]
fn a_record_below_the_frame_address_is_the_functions_own() {
    let rules = [row(0, from_sp(3, None)), row(0x100, from_sp(2, None)), row(0x200, Rule::UNKNOWN)];
    let words = [7, STACK + 24, CODE + 0x101, STACK + 40, CODE + 0x201, 0, CODE + 0x301, 7];
    let registers = Registers { fp: STACK + 8, ..LEAF };
    for every_frame in [false, true] {
        let (walked, path) = walk_with(&words, registers, &rules, every_frame, ());
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!((walked.end, walked.way), (End::Root, Way::Table));
    }
}
