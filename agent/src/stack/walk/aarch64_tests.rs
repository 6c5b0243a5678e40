//! Walks over stacks of aarch64, on every processor.

extern crate std;

use std::vec;
use std::vec::Vec;

use unikprof_proto::caller_table::{Base, Caller, Row};

use super::tests::{CODE, STACK, codes, row, walk_on_with};
use super::*;
use crate::stack::architecture::Aarch64;

/// A return address signed by pointer authentication.
const fn signed(address: u64) -> u64 {
    address | 0x2a55 << 48 & !(1 << 55)
}

fn walk_arm(
    words: &[u64],
    registers: Registers,
    rows: &[Row],
    every_frame: bool,
) -> (Walked, Vec<u32>) {
    walk_on_with::<Aarch64>(words, registers, rows, every_frame, ())
}

fn by(base: Base, words: u16, saved_fp: Option<u8>, lr: u8) -> Rule {
    let caller = Caller::Cfa { base, words, saved_fp };
    Rule::new(caller).with_return_address(lr)
}

/// The return address is in the link register; the stack pointer is this many words below the frame
/// address.
fn in_register(words: u16) -> Rule {
    by(Base::StackPointer, words, None, 0)
}

/// A leaf function: the frame pointer is its caller's.
const LEAF: Registers = Registers::new(CODE, STACK, STACK + 16).with_lr(CODE + 0x101);

/// Two words of the leaf's or of its caller's, and the frame records of the caller and of the
/// outermost function.
const RECORDS: [u64; 6] = [7, 7, STACK + 32, CODE + 0x201, 0, CODE + 0x301];

#[test]
fn the_caller_of_a_leaf_is_in_the_link_register() {
    let naive = walk_arm(&RECORDS, LEAF, &[], false);
    assert_eq!(naive.1, codes(&[0, 0x201, 0x301]), "the caller is passed over");
    assert_eq!(naive.0.way, Way::FramePointer);
    for words in [0, 2] {
        let (walked, path) = walk_arm(&RECORDS, LEAF, &[row(0, in_register(words))], false);
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!((walked.way, walked.end), (Way::Table, End::Root));
    }
}

/// The value that a function's last call left in the link register is no caller.
#[test]
fn a_stale_link_register_is_not_followed() {
    let stale = LEAF.with_lr(CODE + 0x900);
    let record = by(Base::StackPointer, 4, Some(2), 1);
    for (rule, way) in [(record, Way::Table), (Rule::UNKNOWN, Way::FramePointer)] {
        let (walked, path) = walk_arm(&RECORDS, stale, &[row(0, rule)], false);
        assert_eq!(path, codes(&[0, 0x201, 0x301]), "{rule:?}");
        assert_eq!((walked.way, walked.end), (way, End::Root));
    }
    // The link register is the interrupted function's alone: a rule for a caller cannot have it.
    let rows = [row(0, in_register(0)), row(0x100, in_register(0))];
    let (walked, path) = walk_arm(&RECORDS, LEAF, &rows, true);
    assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
    assert!(walked.mixed, "the second caller was found by its record");
}

/// GCC's frames: the record is at the bottom, and the frame's size is known from the table alone. A
/// caller without a record is found by its own saved link register.
#[test]
fn records_at_the_bottom_of_frames_are_looked_up() {
    let words = [
        // Six words of the interrupted function.
        STACK + 72,
        CODE + 0x101,
        7,
        7,
        7,
        7,
        // Three of its caller, which keeps no record: the return address is in the second from the
        // top.
        7,
        CODE + 0x201,
        7,
        0,
        CODE + 0x301,
        7,
    ];
    let registers = Registers::new(CODE, STACK, STACK).with_lr(CODE + 0x900);
    let rows = [
        row(0, by(Base::StackPointer, 6, Some(6), 5)),
        row(0x100, by(Base::StackPointer, 3, None, 2)),
        row(0x200, by(Base::FramePointer, 3, Some(3), 2)),
        row(0x300, Rule::UNKNOWN),
    ];
    let (walked, path) = walk_arm(&words, registers, &rows, false);
    assert_eq!(path, codes(&[0, 0x101, 0x301]), "one caller is passed over");
    assert_eq!(walked.end, End::Root);
    let (walked, path) = walk_arm(&words, registers, &rows, true);
    assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
    assert_eq!((walked.end, walked.mixed), (End::Root, false));
}

#[test]
fn signatures_of_return_addresses_are_removed() {
    let words = [7, 7, STACK + 32, signed(CODE + 0x201), 0, signed(CODE + 0x301)];
    let registers = LEAF.with_lr(signed(CODE + 0x101));
    for every_frame in [false, true] {
        let rows = [row(0, in_register(0)), row(0x100, Aarch64::FRAME_RECORD)];
        let (walked, path) = walk_arm(&words, registers, &rows, every_frame);
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!(walked.end, End::Root);
    }
}

/// The link register is 0 where a thread of a kernel begins.
#[test]
fn a_link_register_of_zero_is_the_root() {
    let rows = [row(0, in_register(0))];
    let (walked, path) = walk_arm(&RECORDS, LEAF.with_lr(0), &rows, false);
    assert_eq!((walked.end, path), (End::Root, codes(&[0])));
}

/// Unikraft starts a thread with a frame pointer of 0 and the address of the thread's function as
/// the return address. The rule of the code before that function is no sign of a missing caller.
#[test]
fn a_thread_that_seems_to_return_to_its_own_function_is_complete() {
    let words = [&RECORDS[..], &[7, 7]].concat();
    // The function before ends in a return, or in a call that does not return.
    for before in [in_register(0), by(Base::StackPointer, 2, Some(2), 1)] {
        let function = [row(0, in_register(0)), row(0x200, before)];
        let next = row(0x301, in_register(0));
        for every_frame in [false, true] {
            let walk = |rows: &[Row]| walk_arm(&words, LEAF, rows, every_frame);
            let (walked, path) = walk(&[&function[..], &[next]].concat());
            assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]), "{every_frame}");
            assert_eq!(walked.end, End::Root, "{before:?}, {every_frame}");
        }
    }
    // Code that goes on with a saved return address has a caller.
    let saved = row(0x200, by(Base::StackPointer, 2, Some(2), 1));
    for every_frame in [false, true] {
        let rows = [row(0, in_register(0)), saved];
        let (walked, _) = walk_arm(&words, LEAF, &rows, every_frame);
        assert_eq!(walked.end, End::Broken, "{every_frame}");
    }
}

/// The frame pointer is followed where a rule leads nowhere.
#[test]
fn a_hostile_rule_of_aarch64_is_passed_over() {
    let sp = Base::StackPointer;
    for rule in [
        // Saved below the stack pointer, misaligned by the register, beyond the stack, no code.
        by(sp, 0, None, 1),
        by(sp, 2, Some(2), 3),
        by(Base::FramePointer, u16::MAX, Some(63), 255),
        by(sp, 6, None, 7),
        by(sp, 2, None, 1),
        Rule(u32::MAX),
    ] {
        let (walked, path) = walk_arm(&RECORDS, LEAF, &[row(0, rule)], false);
        assert_eq!(path, codes(&[0, 0x201, 0x301]), "{rule:?}");
        assert_eq!(walked.way, Way::FramePointer, "{rule:?}");
    }
    let garbage = LEAF.with_lr(0x3ff0_0000_0000_0002);
    let (walked, path) = walk_arm(&RECORDS, garbage, &[row(0, in_register(0))], false);
    assert_eq!(path, codes(&[0, 0x201, 0x301]));
    assert_eq!(walked.way, Way::FramePointer);
}

/// Instructions at [`CODE`].
struct Instruction(u32);

impl ReadCode for Instruction {
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        assert_eq!(pc, CODE);
        let [a, b, c, d] = self.0.to_le_bytes();
        Some([0, a, b, c, d])
    }
}

#[test]
fn entries_and_returns_are_known_by_their_instructions() {
    let walk = |registers, words: &[u64], instruction| {
        walk_on_with::<Aarch64>(words, registers, &[], false, Instruction(instruction))
    };
    // stp x29, x30, [sp, #-32]!; ret
    for at_edge in [0xa9be_7bfd, 0xd65f_03c0] {
        let (walked, path) = walk(LEAF, &RECORDS, at_edge);
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]), "{at_edge:#x}");
        assert_eq!(walked.way, Way::Bytes);
    }
    // add x29, sp, #16: the record is stored, and the frame pointer is still the caller's.
    let words = vec![7, 7, STACK + 32, CODE + 0x101, 0, CODE + 0x201];
    let registers = Registers::new(CODE, STACK, STACK + 32).with_lr(CODE + 0x101);
    let (walked, path) = walk(registers, &words, 0x9100_43fd);
    assert_eq!(path, codes(&[0, 0x101, 0x201]));
    assert_eq!((walked.way, walked.end), (Way::Bytes, End::Root));
    // nop
    let (walked, _) = walk(LEAF, &RECORDS, 0xd503_201f);
    assert_eq!(walked.way, Way::FramePointer);
}
