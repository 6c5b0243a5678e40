//! The architecture-specific parts of the walk for x86_64.
//!
//! Why: docs/design/decisions.md#instructions-are-read-in-the-programs-text-only.

use unikprof_proto::caller_table::{Base, Caller, Rule, machine};

use super::{Architecture, Link, ReturnAddress};
use crate::ground::platform::Registers;

/// x86_64, whose calls push the return address.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct X86_64;

impl Architecture for X86_64 {
    const MACHINE: u16 = machine::X86_64;

    const FRAME_RECORD: Rule = Rule::FRAME_RECORD;

    const RECORD_ENDS_FRAME: bool = true;

    type Link = NoLink;

    /// Just below the canonical frame address, where every call pushes it.
    #[inline]
    fn return_address(rule: Rule, cfa: u64) -> Option<ReturnAddress> {
        match rule.return_address() {
            0 | 1 => cfa.checked_sub(8).map(ReturnAddress::Saved),
            _ => None,
        }
    }

    #[inline]
    fn target(return_address: u64) -> u64 {
        return_address
    }

    /// Canonical for 48 bits, and not in the lowest page, because small integers look like
    /// addresses there.
    #[inline]
    fn may_be_code(address: u64) -> bool {
        const PAGE: u64 = 4096;
        let sign = address as i64 >> 47;
        address >= PAGE && (sign == 0 || sign == -1)
    }

    /// Intel's manual, volume 2: at a function's entry the frame pointer is not pushed yet, at its
    /// return it is already popped.
    #[inline]
    fn rule_of_bytes(bytes: [u8; 5]) -> Rule {
        const PUSH_RBP: u8 = 0x55;
        const RET: u8 = 0xc3;
        const PUSHED: Rule =
            Rule::new(Caller::Cfa { base: Base::StackPointer, words: 2, saved_fp: Some(2) });
        match bytes {
            [_, PUSH_RBP | RET, ..] => Rule::ENTRY,
            // rep ret; endbr64
            [_, 0xf3, RET, ..] | [_, 0xf3, 0x0f, 0x1e, 0xfa] => Rule::ENTRY,
            // mov rbp, rsp, in its two encodings
            [PUSH_RBP, 0x48, 0x89, 0xe5, _] | [PUSH_RBP, 0x48, 0x8b, 0xec, _] => PUSHED,
            _ => Rule::UNKNOWN,
        }
    }
}

/// There is no link register.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct NoLink;

impl Link for NoLink {
    const SAVED: Self = Self;

    #[inline]
    fn of(_: &Registers) -> Self {
        Self
    }

    #[inline]
    fn return_address(self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_integers_and_non_canonical_words_are_no_code() {
        for code in [0x1000, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000, u64::MAX] {
            assert!(X86_64::may_be_code(code), "{code:#x}");
        }
        for garbage in [0, 1, 0xfff, 0x8000_0000_0000, 0xffff_7fff_ffff_ffff, 0x3ff0_0000_0000_0000]
        {
            assert!(!X86_64::may_be_code(garbage), "{garbage:#x}");
        }
    }

    #[test]
    fn the_return_address_lies_just_below_the_frame_address() {
        let at = |words| X86_64::return_address(Rule::ENTRY.with_return_address(words), 0x100);
        let saved = Some(ReturnAddress::Saved(0xf8));
        assert_eq!([at(0), at(1), at(2)], [saved, saved, None]);
        assert_eq!(X86_64::return_address(Rule::ENTRY, 7), None);
    }
}
