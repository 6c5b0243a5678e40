//! Instructions of aarch64, as far as the tests ask about them. Each has four bytes, and is decoded
//! by its fields (Arm Architecture Reference Manual, C4.1 "A64 instruction set encoding").

use super::code::Body;

/// The number of the stack pointer as a base, and that of the frame pointer.
const SP: u32 = 31;
const FP: u32 = 29;

/// The instructions of one function, with its address.
pub(crate) struct Aarch64 {
    start: u64,
    words: Vec<u32>,
}

impl Aarch64 {
    pub(crate) fn decode(start: u64, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "whole instructions at {start:#x}");
        let words = words.iter().map(|word| u32::from_le_bytes(*word));
        Self { start, words: words.collect() }
    }

    fn instructions(&self) -> impl Iterator<Item = (u64, u32)> {
        let addresses = (self.start..).step_by(4);
        addresses.zip(self.words.iter().copied())
    }

    fn text((at, word): (u64, u32)) -> String {
        format!("{word:08x} at {at:#x}")
    }
}

impl Body for Aarch64 {
    /// All is in the frame.
    fn call_bytes(&self) -> u64 {
        0
    }

    fn branches(&self) -> Vec<(u64, u64)> {
        self.instructions().filter_map(|(at, word)| Some((at, branch_target(at, word)?))).collect()
    }

    /// Subtractions from the stack pointer, pairs stored below it, and what aligning it takes.
    fn frame_bytes(&self) -> u64 {
        let (mut taken, mut computed) = (0, None);
        let mut is_probed = false;
        for word in &self.words {
            let (rd, rn) = (word & 31, word >> 5 & 31);
            if word & 0xff80_0000 == 0xd100_0000 && (rn == SP || Some(rn) == computed) {
                let shift = if word & 1 << 22 == 0 { 0 } else { 12 };
                let bytes = u64::from(word >> 10 & 0xfff) << shift;
                // A large frame: its end is computed, and then a loop touches its pages.
                is_probed |= rd != SP;
                if !(rd == SP && is_probed && bytes == 0x1000) {
                    taken += bytes;
                }
                computed = (rd != SP).then_some(rd);
            } else {
                // and, with a row of ones at the top.
                if word & 0xffc0_0000 == 0x9240_0000 && Some(rn) == computed {
                    taken += (1_u64 << (63 - (word >> 10 & 63))) - 1;
                }
                computed = None;
            }
            if let Some(Access { before: true, .. }) = access(*word).filter(|it| it.base == SP) {
                taken += access(*word).map_or(0, |it| it.offset.min(0).unsigned_abs());
            }
        }
        taken
    }

    /// There is no red zone: below `sp` itself, or, relative to the frame pointer, below what the
    /// function has taken.
    fn below_the_stack(&self) -> Option<String> {
        let frame = self.frame_bytes();
        let keeps_frame = self.words.iter().any(|word| word & 0xff80_03ff == 0x9100_03fd);
        let mut instructions = self.instructions();
        let found = instructions.find(|(_, word)| {
            access(*word).is_some_and(|it| match it.base {
                SP => it.offset < 0 && !it.before && !it.behind,
                FP => keeps_frame && it.offset < 0 && it.offset.unsigned_abs() > frame,
                _ => false,
            })
        });
        found.map(Self::text)
    }

    fn vector_instruction(&self) -> Option<String> {
        let found = self.instructions().find(|(_, word)| {
            let group = word >> 25 & 15;
            // Data processing, loads and stores of these registers.
            let is_simd = word >> 26 & 3 == 3;
            let is_scalable = group == 2 || group == 0 && word >> 31 == 1;
            // mrs, msr of fpcr and fpsr.
            let is_control = word & 0xffdf_ffc0 == 0xd51b_4400;
            is_simd || is_scalable || is_control
        });
        found.map(Self::text)
    }

    fn traps(&self) -> bool {
        let is_call = |word: u32| word & 0xfc00_0000 == 0x9400_0000;
        let targets: Vec<u64> = self
            .instructions()
            .filter(|(_, word)| !is_call(*word))
            .filter_map(|(at, word)| branch_target(at, word))
            .collect();
        let mut falls_through = true;
        self.instructions().any(|(at, word)| {
            let is_reached = falls_through || targets.contains(&at);
            // brk, udf.
            let is_trap = word & 0xffe0_001f == 0xd420_0000 || word >> 16 == 0;
            // br, ret, eret, but not blr.
            let leaves = word & 0xfe00_0000 == 0xd600_0000 && word >> 21 & 7 != 1;
            let jumps = word & 0xfc00_0000 == 0x1400_0000;
            falls_through = !(is_trap || leaves || jumps);
            is_reached && is_trap
        })
    }
}

/// The target of a direct branch or call, without a relocation.
fn branch_target(at: u64, word: u32) -> Option<u64> {
    let field = |first: u32, bits: u32| {
        let value = (word << (32 - first - bits)) as i32 >> (32 - bits);
        at.wrapping_add_signed(i64::from(value) * 4)
    };
    // b, bl; b.cond, cbz, cbnz; tbz, tbnz.
    if word & 0x7c00_0000 == 0x1400_0000 {
        Some(field(0, 26))
    } else if word & 0xff00_0010 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        Some(field(5, 19))
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        Some(field(5, 14))
    } else {
        None
    }
}

/// A load or store with a signed offset.
struct Access {
    base: u32,
    offset: i64,
    /// The base changes by the offset before or behind the access.
    before: bool,
    behind: bool,
}

fn access(word: u32) -> Option<Access> {
    let base = word >> 5 & 31;
    let (mode, offset) = if word & 0x3a00_0000 == 0x2800_0000 {
        // Pairs.
        let scale = if word >> 31 == 0 { 4 } else { 8 };
        let words = (word << 10) as i32 >> 25;
        (word >> 23 & 3, i64::from(words) * scale)
    } else if word & 0x3b20_0000 == 0x3800_0000 {
        let bytes = (word << 11) as i32 >> 23;
        (word >> 10 & 3, i64::from(bytes))
    } else {
        return None;
    };
    Some(Access { base, offset, before: mode == 3, behind: mode == 1 })
}
