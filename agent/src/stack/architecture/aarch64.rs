//! The architecture-specific parts of the walk for aarch64.
//!
//! A call (`bl`, `blr`) leaves the return address in the link register, `x30`. A function that
//! calls others saves it, together with the caller's frame pointer, as a frame record ([AAPCS64],
//! "The Frame Pointer"). So a leaf function has no record, and its caller is in the link register
//! throughout; but only the caller table knows leaf functions. In any other function the link
//! register holds what the last call left there.
//!
//! [AAPCS64]: https://github.com/ARM-software/abi-aa/blob/main/aapcs64/aapcs64.rst

use unikprof_proto::caller_table::{Base, Caller, Rule, machine};

use super::{Architecture, Link, ReturnAddress};
use crate::ground::platform::Registers;

/// aarch64, whose calls leave the return address in a register.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct Aarch64;

/// The bits of an address. Return addresses may have a signature above them.
const ADDRESS_BITS: u32 = 48;

impl Architecture for Aarch64 {
    const MACHINE: u16 = machine::AARCH64;

    /// As clang and rustc lay frames out that save nothing else. Otherwise they have what they save
    /// above the record, and GCC the whole frame; their rules give its size.
    const FRAME_RECORD: Rule = Rule::FRAME_RECORD.with_return_address(1);

    const RECORD_ENDS_FRAME: bool = false;

    type Link = LinkRegister;

    #[inline]
    fn return_address(rule: Rule, cfa: u64) -> Option<ReturnAddress> {
        match rule.return_address() {
            0 => Some(ReturnAddress::LinkRegister),
            words => cfa.checked_sub(u64::from(words) * 8).map(ReturnAddress::Saved),
        }
    }

    /// The address without the signature of pointer authentication, which takes the place of the
    /// sign in the bits above the address, except for bit 55. With fewer than 48 bits of address,
    /// parts of a signature would stay; Xen's guests have no pointer authentication.
    #[inline]
    fn target(return_address: u64) -> u64 {
        const SIGN: u64 = 1 << 55;
        const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
        if return_address & SIGN == 0 {
            return_address & ADDRESS
        } else {
            return_address | !ADDRESS
        }
    }

    /// Aligned, canonical for 48 bits (in either half), and not in the lowest page, because small
    /// integers look like addresses there.
    #[inline]
    fn may_be_code(address: u64) -> bool {
        const PAGE: u64 = 4096;
        let sign = address as i64 >> ADDRESS_BITS;
        address >= PAGE && address & 3 == 0 && (sign == 0 || sign == -1)
    }

    /// At its entry and at its return a function has no frame, and the return address is in the
    /// link register. Where the frame pointer is set, the record has just been stored there.
    fn rule_of_bytes([_, bytes @ ..]: [u8; 5]) -> Rule {
        const IN_REGISTER: Rule =
            Rule::new(Caller::Cfa { base: Base::StackPointer, words: 0, saved_fp: None });
        // Two words are stored or loaded: x29 and x30, relative to sp.
        const PAIR: u32 = 0xffc0_7fff;
        const STORE_BEFORE: u32 = 0xa980_7bfd;
        const STORE_AT: u32 = 0xa900_7bfd;
        // The immediate value is in bits 10 to 21, and not shifted.
        const ADD: u32 = 0xffc0_03ff;
        const ADD_X29_SP: u32 = 0x9100_03fd;
        let instruction = u32::from_le_bytes(bytes);
        match instruction {
            // paciasp, pacibsp; bti with its kinds of targets.
            0xd503_233f | 0xd503_237f | 0xd503_241f | 0xd503_245f | 0xd503_249f | 0xd503_24df => {
                IN_REGISTER
            }
            // autiasp, autibsp; ret, retaa, retab.
            0xd503_23bf | 0xd503_23ff | 0xd65f_03c0 | 0xd65f_0bff | 0xd65f_0fff => IN_REGISTER,
            _ if matches!(instruction & PAIR, STORE_BEFORE | STORE_AT) => IN_REGISTER,
            _ if instruction & ADD == ADD_X29_SP => {
                let bytes = instruction >> 10 & 0xfff;
                match bytes % 8 {
                    0 => Rule::new(Caller::Cfa {
                        base: Base::StackPointer,
                        words: (bytes / 8 + 2) as u16,
                        saved_fp: Some(2),
                    })
                    .with_return_address(1),
                    _ => Rule::UNKNOWN,
                }
            }
            _ => Rule::UNKNOWN,
        }
    }
}

/// The return address in `x30`; `None` if it was saved.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct LinkRegister(Option<u64>);

impl Link for LinkRegister {
    const SAVED: Self = Self(None);

    #[inline]
    fn of(registers: &Registers) -> Self {
        Self(Some(registers.lr))
    }

    #[inline]
    fn return_address(self) -> Option<u64> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misaligned_words_and_those_that_are_not_canonical_are_no_code() {
        for code in [0x1000, 0xffff_ffff_fffc, 0xffff_0000_0000_0000, !3] {
            assert!(Aarch64::may_be_code(code), "{code:#x}");
        }
        for garbage in [0, 0xffc, 0x1002, 1 << 48, 0xfffe_ffff_ffff_fffc] {
            assert!(!Aarch64::may_be_code(garbage), "{garbage:#x}");
        }
    }

    /// A signature is in the bits above an address, except for bit 55, in addresses of either half.
    #[test]
    fn signatures_are_removed() {
        for address in [0x40_1234, 0xffff_8000_0040_1234] {
            assert_eq!(Aarch64::target(address), address);
            for signature in [0x005a_0000_0000_0000, 0xff7f_0000_0000_0000] {
                assert_eq!(Aarch64::target(address ^ signature), address);
            }
        }
    }

    #[test]
    fn entries_returns_and_records_are_known_by_their_instructions() {
        let rule = |instruction: u32| {
            let [a, b, c, d] = instruction.to_le_bytes();
            let rule = Aarch64::rule_of_bytes([0, a, b, c, d]);
            (rule.caller(), rule.return_address())
        };
        let by = |words, saved_fp, lr| {
            let base = Base::StackPointer;
            let caller = Caller::Cfa { base, words, saved_fp };
            (caller, lr)
        };
        for no_frame in [
            // paciasp; bti c; autiasp; ret; retaa
            0xd503_233f,
            0xd503_245f,
            0xd503_23bf,
            0xd65f_03c0,
            0xd65f_0bff,
            // stp x29, x30, [sp, #-16]!; the same with #-512; stp x29, x30, [sp, #48]
            0xa9bf_7bfd,
            0xa9a0_7bfd,
            0xa903_7bfd,
        ] {
            assert_eq!(rule(no_frame), by(0, None, 0), "{no_frame:#x}");
        }
        // mov x29, sp; add x29, sp, #48
        assert_eq!(rule(0x9100_03fd), by(2, Some(2), 1));
        assert_eq!(rule(0x9100_c3fd), by(8, Some(2), 1));
        for unknown in [
            // nop; ldp x29, x30, [sp], #16; stp x28, x30, [sp, #-16]!; add x29, sp, #4; add x29,
            // sp, #1, lsl #12; mov x28, sp; ret x1
            0xd503_201f,
            0xa8c1_7bfd,
            0xa9bf_7bfc,
            0x9100_13fd,
            0x9140_07fd,
            0x9100_03fc,
            0xd65f_0020,
        ] {
            assert_eq!(rule(unknown), (Caller::Unknown, 0), "{unknown:#x}");
        }
    }
}
