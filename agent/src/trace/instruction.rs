//! The instructions that a probe may replace.
//!
//! An instruction at a probe is either a transfer of control, which the handler emulates, or one
//! that runs as a copy in a slot. Copies are accepted by a list: the decoder knows the length of
//! each accepted instruction and its displacement from the program counter, whatever a client says,
//! and refuses all others. It refuses instructions that name their own address (`syscall`,
//! `xbegin`, `loop`), that change the processor's state so that the jump behind the copy matters
//! (`sti`, `mov %ss`, `popf`), and that are rarely met at an entry (EVEX, far transfers).
//!
//! Encodings: Intel's manual, volume 2, appendix A.

use unikprof_proto::trace::MAX_INSTRUCTION;

/// The handler's action for an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Continue in a slot with a copy. `displacement` is the offset of a 32-bit displacement from
    /// the program counter; 0: there is none.
    Copy { displacement: u8 },
    /// Continue in a slot that pushes the original return address and jumps to the target.
    Call { relative: i32 },
    /// A near return that removes `pop` more bytes.
    Return { pop: u16 },
    /// A direct jump, relative to the next instruction.
    Jump { relative: i32 },
    /// A conditional jump; `condition` is the lower half of its opcode.
    Branch { condition: u8, relative: i32 },
    /// A jump to an address in a register or in memory; see [`indirect_target`].
    Indirect,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) operation: Operation,
    pub(crate) length: u8,
}

/// Bytes at the start of an instruction that are no opcode.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 0x66: operands of 16 bits.
    short: bool,
    /// 0xf2 or 0xf3.
    repeat: u8,
    lock: bool,
    /// A segment that has a base in 64-bit mode: FS or GS.
    segment: bool,
    rex: u8,
}

/// The operands behind an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Immediate bytes only.
    Plain(usize),
    /// A ModRM byte with its operand, then immediate bytes.
    Modrm(usize),
}

/// REX.W: operands of 64 bits.
const WIDE: u8 = 8;

/// Decodes the instruction at the start of `bytes`; `None` if it cannot be replaced by a probe or
/// is cut.
#[inline(never)]
pub(crate) fn decode(bytes: &[u8]) -> Option<Instruction> {
    let bytes = bytes.get(..bytes.len().min(MAX_INSTRUCTION))?;
    let mut cursor = Cursor { bytes, at: 0 };
    let mut prefixes = Prefixes::default();
    let mut opcode = cursor.byte()?;
    loop {
        match opcode {
            0x66 => prefixes.short = true,
            0xf2 | 0xf3 => prefixes.repeat = opcode,
            0xf0 => prefixes.lock = true,
            0x64 | 0x65 => prefixes.segment = true,
            // Segments without a base; 0x3e also marks an indirect jump that needs no landing pad.
            0x26 | 0x2e | 0x36 | 0x3e => {}
            _ => break,
        }
        opcode = cursor.byte()?;
    }
    if opcode & 0xf0 == 0x40 {
        prefixes.rex = opcode;
        opcode = cursor.byte()?;
    }
    let transfer = match opcode {
        0x70..=0x7f => {
            Some(Operation::Branch { condition: opcode & 0xf, relative: cursor.signed_byte()? })
        }
        0xc2 => {
            Some(Operation::Return { pop: u16::from_le_bytes([cursor.byte()?, cursor.byte()?]) })
        }
        0xc3 => Some(Operation::Return { pop: 0 }),
        0xe8 => Some(Operation::Call { relative: cursor.signed_word()? }),
        0xe9 => Some(Operation::Jump { relative: cursor.signed_word()? }),
        0xeb => Some(Operation::Jump { relative: cursor.signed_byte()? }),
        0x0f if matches!(cursor.peek(), Some(0x80..=0x8f)) => {
            let condition = cursor.byte()? & 0xf;
            Some(Operation::Branch { condition, relative: cursor.signed_word()? })
        }
        0xff if cursor.extension() == Some(4) => {
            cursor.operand()?;
            Some(Operation::Indirect)
        }
        _ => None,
    };
    let operation = match transfer {
        // With 0x66 processors disagree about the length.
        Some(_) if prefixes.short || prefixes.lock || prefixes.segment => return None,
        Some(transfer) => transfer,
        None => copied(opcode, prefixes, &mut cursor)?,
    };
    let length = u8::try_from(cursor.at).ok()?;
    Some(Instruction { operation, length })
}

/// Decodes the rest of an instruction that can run as a copy.
fn copied(opcode: u8, prefixes: Prefixes, cursor: &mut Cursor<'_>) -> Option<Operation> {
    let rest = match opcode {
        0x0f => {
            let opcode = cursor.byte()?;
            match opcode {
                0x38 => match cursor.byte()? {
                    // Not 0x80: invalidations; not 0xf8: stores to devices.
                    0x00..=0x7f | 0xc8..=0xcf | 0xd0..=0xf1 | 0xf5..=0xf7 => Rest::Modrm(0),
                    _ => return None,
                },
                0x3a => match cursor.byte()? {
                    0x00..=0xcf | 0xdf => Rest::Modrm(1),
                    _ => return None,
                },
                _ => second_map(opcode, prefixes, cursor.peek())?,
            }
        }
        0xc4 | 0xc5 => vex(opcode, prefixes, cursor)?,
        // `enter` with nested levels copies from memory that it may have written before it was
        // interrupted.
        0xc8 if cursor.bytes.get(cursor.at + 2) != Some(&0) => return None,
        _ => first_map(opcode, prefixes, cursor.extension())?,
    };
    let (displacement, immediate) = match rest {
        Rest::Plain(immediate) => (0, immediate),
        Rest::Modrm(immediate) => (cursor.operand()?, immediate),
    };
    cursor.skip(immediate)?;
    Some(Operation::Copy { displacement: u8::try_from(displacement).ok()? })
}

/// The opcodes of one byte.
fn first_map(opcode: u8, prefixes: Prefixes, extension: Option<u8>) -> Option<Rest> {
    let word = if prefixes.short && prefixes.rex & WIDE == 0 { 2 } else { 4 };
    Some(match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => Rest::Modrm(0),
            4 => Rest::Plain(1),
            5 => Rest::Plain(word),
            _ => return None,
        },
        0x50..=0x5f | 0x90..=0x99 | 0x9b | 0x9c | 0x9e | 0x9f => Rest::Plain(0),
        0x63 | 0x84..=0x8d | 0xd0..=0xd3 | 0xd8..=0xdf => Rest::Modrm(0),
        0x68 | 0xa9 => Rest::Plain(word),
        0x69 | 0x81 => Rest::Modrm(word),
        0x6a | 0xa8 | 0xb0..=0xb7 => Rest::Plain(1),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 => Rest::Modrm(1),
        0x8f if extension == Some(0) => Rest::Modrm(0),
        // An address of 64 bits.
        0xa0..=0xa3 => Rest::Plain(8),
        0xa4..=0xa7 | 0xaa..=0xaf => Rest::Plain(0),
        0xb8..=0xbf if prefixes.rex & WIDE != 0 => Rest::Plain(8),
        0xb8..=0xbf => Rest::Plain(word),
        0xc6 if extension == Some(0) => Rest::Modrm(1),
        0xc7 if extension == Some(0) => Rest::Modrm(word),
        0xc8 => Rest::Plain(3),
        // leave, xlat, cmc, clc, stc, cli, cld, std
        0xc9 | 0xd7 | 0xf5 | 0xf8..=0xfa | 0xfc | 0xfd => Rest::Plain(0),
        0xf6 => Rest::Modrm(usize::from(extension? < 2)),
        0xf7 => Rest::Modrm(if extension? < 2 { word } else { 0 }),
        0xfe if extension? < 2 => Rest::Modrm(0),
        0xff if matches!(extension, Some(0 | 1 | 6)) => Rest::Modrm(0),
        _ => return None,
    })
}

/// The opcodes after 0x0f.
fn second_map(opcode: u8, prefixes: Prefixes, modrm: Option<u8>) -> Option<Rest> {
    let extension = modrm.map(|modrm| modrm >> 3 & 7);
    let is_register = modrm.is_some_and(|modrm| modrm >> 6 == 3);
    Some(match opcode {
        // Prefetches, moves, and NOPs, among them endbr64.
        0x0d | 0x10..=0x17 | 0x18 | 0x19 | 0x1c..=0x1f => Rest::Modrm(0),
        0x28..=0x2f | 0x40..=0x6f | 0x74..=0x76 | 0x7c..=0x7f => Rest::Modrm(0),
        // rdtsc, emms, push %fs, cpuid, push %gs, bswap
        0x31 | 0x77 | 0xa0 | 0xa2 | 0xa8 | 0xc8..=0xcf => Rest::Plain(0),
        0x70..=0x73 | 0xa4 | 0xac | 0xc2 | 0xc4..=0xc6 => Rest::Modrm(1),
        0x90..=0x9f | 0xa3 | 0xa5 | 0xab | 0xad | 0xaf => Rest::Modrm(0),
        0xae if prefixes.repeat == 0 && !prefixes.short => Rest::Modrm(0),
        0xb0 | 0xb1 | 0xb3 | 0xb6 | 0xb7 | 0xbb..=0xbf | 0xc0 | 0xc1 | 0xc3 => Rest::Modrm(0),
        0xb8 if prefixes.repeat == 0xf3 => Rest::Modrm(0),
        0xba if extension? >= 4 => Rest::Modrm(1),
        // cmpxchg8b and cmpxchg16b, rdrand, rdseed
        0xc7 if extension == Some(1) && !is_register => Rest::Modrm(0),
        0xc7 if matches!(extension, Some(6 | 7)) && is_register && prefixes.repeat == 0 => {
            Rest::Modrm(0)
        }
        0xd0..=0xfe => Rest::Modrm(0),
        _ => return None,
    })
}

/// An instruction with a VEX prefix.
fn vex(opcode: u8, prefixes: Prefixes, cursor: &mut Cursor<'_>) -> Option<Rest> {
    if prefixes.short || prefixes.lock || prefixes.repeat != 0 || prefixes.rex != 0 {
        return None;
    }
    let first = cursor.byte()?;
    let map = if opcode == 0xc5 { 1 } else { first & 0x1f };
    if opcode == 0xc4 {
        cursor.byte()?;
    }
    let opcode = cursor.byte()?;
    Some(match (map, opcode) {
        (1, 0x77) => Rest::Plain(0),
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) => Rest::Modrm(1),
        (1, 0x10..=0x17 | 0x28..=0x2f | 0x40..=0x6f | 0x74..=0x76 | 0x7c..=0x7f | 0xd0..=0xfe)
        | (2, _) => Rest::Modrm(0),
        (3, _) => Rest::Modrm(1),
        _ => return None,
    })
}

/// The registers of interrupted code, as far as instructions at probes use them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TrapFrame {
    /// The general registers in the order of their encodings: rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 to r15.
    pub registers: [u64; 16],
    /// The program counter that the processor has saved, which is the address after the breakpoint.
    pub pc: u64,
    /// The flags.
    pub flags: u64,
}

/// The index of the stack pointer in [`TrapFrame::registers`].
const RSP: usize = 4;

impl TrapFrame {
    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers[RSP]
    }

    pub(super) fn set_sp(&mut self, sp: u64) {
        self.registers[RSP] = sp;
    }

    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number & 15)]
    }
}

/// Whether a conditional jump is taken.
pub(crate) fn is_taken(condition: u8, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 == 1;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    let is_true = match condition >> 1 & 7 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry || zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        _ => zero || sign != overflow,
    };
    is_true != (condition & 1 == 1)
}

/// The target of an [`Operation::Indirect`] at `address`. `read` returns the word at an address.
pub(crate) fn indirect_target(
    bytes: &[u8],
    address: u64,
    frame: &TrapFrame,
    read: impl FnOnce(u64) -> u64,
) -> Option<u64> {
    let opcode = bytes.iter().position(|byte| *byte == 0xff)?;
    let rex = match opcode.checked_sub(1).and_then(|at| bytes.get(at)) {
        Some(rex) if rex & 0xf0 == 0x40 => *rex,
        _ => 0,
    };
    let modrm = *bytes.get(opcode + 1)?;
    let (mode, low) = (modrm >> 6, modrm & 7);
    let base_bit = (rex & 1) << 3;
    if mode == 3 {
        return Some(frame.register(low | base_bit));
    }
    let mut cursor = Cursor { bytes, at: opcode + 2 };
    let mut base = Some(low | base_bit);
    let mut place = 0_u64;
    let mut has_word = mode == 2;
    if low == 4 {
        let sib = cursor.byte()?;
        let index = sib >> 3 & 7 | (rex & 2) << 2;
        if index != RSP as u8 {
            place = frame.register(index) << (sib >> 6);
        }
        base = Some(sib & 7 | base_bit);
        if sib & 7 == 5 && mode == 0 {
            base = None;
            has_word = true;
        }
    } else if low == 5 && mode == 0 {
        base = None;
        has_word = true;
        place = address.wrapping_add(bytes.len() as u64);
    }
    if let Some(base) = base {
        place = place.wrapping_add(frame.register(base));
    }
    let displacement = if has_word {
        cursor.signed_word()?
    } else if mode == 1 {
        cursor.signed_byte()?
    } else {
        0
    };
    Some(read(place.wrapping_add_signed(displacement.into())))
}

/// The bytes of an instruction.
struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn signed_byte(&mut self) -> Option<i32> {
        Some((self.byte()? as i8).into())
    }

    fn signed_word(&mut self) -> Option<i32> {
        let word = self.bytes.get(self.at..)?.first_chunk()?;
        self.at += 4;
        Some(i32::from_le_bytes(*word))
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.at += bytes;
        (self.at <= self.bytes.len()).then_some(())
    }

    /// The opcode's extension in the ModRM byte that follows.
    fn extension(&self) -> Option<u8> {
        self.peek().map(|modrm| modrm >> 3 & 7)
    }

    /// Skips a ModRM byte and its operand; returns the offset of a displacement from the program
    /// counter, or 0.
    fn operand(&mut self) -> Option<usize> {
        let modrm = self.byte()?;
        let (mode, low) = (modrm >> 6, modrm & 7);
        let mut displacement = 0;
        let has_sib = mode != 3 && low == 4;
        let base = if has_sib { self.byte()? & 7 } else { low };
        let bytes = match mode {
            0 if base == 5 => {
                if !has_sib {
                    displacement = self.at;
                }
                4
            }
            1 => 1,
            2 => 4,
            _ => 0,
        };
        self.skip(bytes)?;
        Some(displacement)
    }
}
